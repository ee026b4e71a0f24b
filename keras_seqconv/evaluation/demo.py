"""Demo page for models, in the browser. Needs the extra `demo` (Gradio)."""

import html
import math
import os
import re

from keras_seqconv.evaluation import plots
from keras_seqconv.support import require
from keras_seqconv.translation.text_model import UnknownTokens
from keras_seqconv.translation.translator import LanguageGenerator, Translator

# Longer texts would keep others waiting.
MOST_CHARACTERS = 1000
_MOST_WAITING = 20
_MOST_BEAMS = 12
_NO_KERNELS = "none"


def page(models: dict[str, Translator | LanguageGenerator]):
    """Makes a Gradio page with one or two models for the same text.

    Translation models translate each line separately, like `keras-seqconv translate`,
    and show the n best translations with the score of each token, and for the first
    line the attention and the kernels of the convolutions. Language models continue a
    text. The results are those of `translate_n_best` and `sample`.

    Args:
        models: name -> result of `keras_seqconv.load`, with tokenizers.

    Returns:
        `gradio.Blocks`; `serve` serves it. Its own `launch()` has no rules about hosts
        and uploads but Gradio's.

    Raises:
        ValueError: none or more than two models, models of different kinds, or one
            without tokenizers.
        ImportError: Gradio is not installed.
    """
    kinds = {type(model) for model in models.values()}
    if not 1 <= len(models) <= 2 or len(kinds) != 1:
        raise ValueError(
            "`models` must be one model or two of a kind. Received: "
            + ", ".join(f"{name} ({type(m).__name__})" for name, m in models.items())
        )
    for name, model in models.items():
        if not model.tokenizers:
            raise ValueError(f"`models` must have tokenizers. Received: {name}")
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    gradio = require("gradio", "demo")
    with gradio.Blocks(title="keras_seqconv", analytics_enabled=False) as blocks:
        if kinds == {LanguageGenerator}:
            _generation(gradio, models)
        else:
            _translation(gradio, models)
    return blocks.queue(max_size=_MOST_WAITING, default_concurrency_limit=1)


def serve(blocks, host: str = "127.0.0.1", port: int = 7860) -> None:
    """Serves a page of `page` until Ctrl-C.

    Requests are answered if the header `Host` is `host` or a loopback name (any, if
    `host` is "0.0.0.0", all addresses), `Origin` is the same, and nothing is uploaded.

    Args:
        blocks: result of `page`.
        host, port: address and port to listen on.
    """
    starlette = require("starlette.middleware", "demo")
    hosts = {host.lower(), "localhost", "127.0.0.1", "::1"}
    guard = starlette.Middleware(_guard, None if host in ("0.0.0.0", "::") else hosts)
    blocks.launch(
        server_name=host,
        server_port=port,
        quiet=True,
        footer_links=[],
        app_kwargs={"middleware": [guard]},
    )


def _guard(app, hosts: set[str] | None):
    """ASGI middleware with the rules of `serve`.

    Pages of others can give this machine a name of theirs (DNS rebinding), and send
    files, which Gradio would store.
    """

    async def guarded(scope, receive, send):
        if scope["type"] != "http" or _is_allowed(scope, hosts):
            return await app(scope, receive, send)
        await send({"type": "http.response.start", "status": 403, "headers": []})
        await send({"type": "http.response.body", "body": b"Refused.\n"})

    return guarded


def _is_allowed(scope, hosts: set[str] | None) -> bool:
    headers = {key: value.decode("latin-1") for key, value in scope["headers"]}
    host = headers.get(b"host", "")
    if hosts and re.sub(r":\d*$", "", host).strip("[]").lower() not in hosts:
        return False
    if headers.get(b"origin", f"//{host}").partition("//")[2] != host:
        return False
    # Events of the page have texts of bounded length.
    size = re.fullmatch(r"\d{1,6}", headers.get(b"content-length", ""))
    is_event = scope["path"].endswith("/queue/join") and size is not None
    return is_event or scope["method"] in ("GET", "HEAD")


def _translation(gradio, models):
    first = next(iter(models.values()))
    languages = (first.source_language, first.target_language)
    gradio.Markdown(f"## Translate{' {} → {}'.format(*languages) * all(languages)}")
    label = "Texts, one a line"
    text = gradio.Textbox(label=label, lines=2, max_length=MOST_CHARACTERS)
    with gradio.Row():
        default = min(_MOST_BEAMS, first.search.num_beams)
        beams = gradio.Slider(1, _MOST_BEAMS, default, step=1, label="Beams")
        penalty = first.search.length_penalty
        penalty = gradio.Slider(-1.0, 3.0, penalty, step=0.1, label="Length penalty")
    button = gradio.Button("Translate", variant="primary")
    with gradio.Row():
        for name, translator in models.items():
            with gradio.Column():
                _translator(gradio, name, translator, text, beams, penalty, button)


def _translator(gradio, name, translator, text, beams, penalty, button):
    """One model's half of the page."""
    gradio.Markdown(f"### {name}")
    best = gradio.Textbox(label="Translation", interactive=False)
    hypotheses = gradio.HTML(label="n best")
    gradio.Markdown("Where it looked (first line)")
    attention = gradio.Plot(show_label=False)
    layers = _layers(translator)
    layer = gradio.Dropdown(
        layers, label="Kernels of", visible=layers != [_NO_KERNELS], value=layers[0]
    )
    kernels = gradio.Plot(show_label=False, visible=layers != [_NO_KERNELS])

    def translate(text, beams, penalty, layer):
        _check(gradio, text)
        if not text.strip():
            # An error would mark each of the outputs.
            gradio.Warning("Type a text first.")
            return gradio.skip()
        lines = _lines(text)
        try:
            n_best = translator.translate_n_best(
                lines, beams, beams, length_penalty=penalty, return_attention=True
            )
        except (ValueError, TypeError) as error:
            raise gradio.Error(str(error), print_exception=False) from error
        _tell_unknown(gradio, translator.source_tokenizer, lines)
        texts = [hypotheses[0].text if hypotheses else "" for hypotheses in n_best]
        if not any(texts):
            gradio.Warning("There is no word to translate.")
            return gradio.skip()
        picture = drawn = None
        if texts[0]:
            ids = translator.source_ids(lines[:1])[0][0]
            read = translator.source_tokenizer.to_tokens(ids)
            picture = plots.attention(
                n_best[0][0].attention,
                [*read, "</s>"],
                [*n_best[0][0].tokens, "</s>"],
            )
            drawn = draw_kernels(text, texts[0], layer)
        return "\n".join(texts), "".join(map(table, n_best)), picture, drawn

    def draw_kernels(text, translation, layer):
        _check(gradio, text)
        if layer == _NO_KERNELS or not text.strip():
            return None
        first = translation.partition("\n")[0][:MOST_CHARACTERS]
        return _kernels(translator, _lines(text)[0], first, layer)

    outputs = [best, hypotheses, attention, kernels]
    gradio.on(
        [button.click, text.submit],
        translate,
        [text, beams, penalty, layer],
        outputs,
        api_name=False,
    )
    layer.change(draw_kernels, [text, best, layer], kernels, api_name=False)


def _generation(gradio, models):
    gradio.Markdown("## Continue a text")
    prompt = gradio.Textbox(label="Beginning", lines=3, max_length=MOST_CHARACTERS)
    with gradio.Row():
        length = gradio.Slider(10, 1000, 200, step=10, label="Tokens")
        temperature = gradio.Slider(0.1, 2.0, 0.8, step=0.1, label="Temperature")
        top_k = gradio.Slider(0, 100, 40, step=1, label="Of the k likeliest (0: all)")
        seed = gradio.Number(1, label="Seed", precision=0)
    button = gradio.Button("Continue", variant="primary")
    with gradio.Row():
        for name, generator in models.items():
            output = gradio.Textbox(label=name, lines=12, interactive=False)

            def sample(prompt, length, temperature, top_k, seed, generator=generator):
                _check(gradio, prompt)
                options = {"temperature": temperature, "top_k": top_k or None}
                try:
                    texts = generator.sample(
                        [prompt], int(seed), max_length=length, **options
                    )
                except (ValueError, TypeError) as error:
                    raise gradio.Error(str(error), print_exception=False) from error
                _tell_unknown(gradio, generator.tokenizer, [prompt])
                return texts[0]

            inputs = [prompt, length, temperature, top_k, seed]
            button.click(sample, inputs, output, api_name=False)


def _check(gradio, text: str):
    # The box bounds it too, but not what a program sends.
    if len(text) > MOST_CHARACTERS:
        words = f"At most {MOST_CHARACTERS:,} characters, please; {len(text):,} came."
        raise gradio.Error(words, print_exception=False)


def _tell_unknown(gradio, tokenizer, texts: list[str]):
    unknown = UnknownTokens(tokenizer).count(tokenizer.tokenize(texts), texts)
    unknown.tell(gradio.Warning)


def _lines(text: str) -> list[str]:
    """The texts that are typed, one a line; blank lines are none."""
    return [line for line in text.split("\n") if line.strip()]


def table(hypotheses) -> str:
    """HTML of the n best: scores, and each token the darker the less likely it was."""
    rows = []
    for best in hypotheses:
        tokens = [*best.tokens, "</s>"] if len(best.positional_scores) else []
        tokens = zip(tokens, best.positional_scores, strict=True)
        spans = "".join(
            f'<span style="display:inline-block;padding:2px 4px;margin:1px;'
            "border-radius:4px;background:rgba(213,94,0,"
            f"{0.7 * (1 - math.exp(score)):.2f})"
            f'" title="log-probability {score:.2f}">{html.escape(token)}'
            f'<br><small style="opacity:.7">{score:.2f}</small></span>'
            for token, score in tokens
        )
        rows.append(
            f"<tr><td style='vertical-align:top'>{best.score:.3f}</td>"
            f"<td>{html.escape(best.text)}<br>{spans}</td></tr>"
        )
    return f"<table><tr><th>score</th><th></th></tr>{''.join(rows)}</table>"


def _layers(translator) -> list[str]:
    """Names of the layers whose kernels can be drawn, or [none]."""
    if not translator.is_of_keras:
        return [_NO_KERNELS]
    from keras_seqconv.evaluation import inspection

    try:
        inputs, _ = inspection.sentence(translator, "", "")
        layers = inspection.dynamic_conv_kernels(translator.model, inputs)
    except ValueError:  # no such layer
        return [_NO_KERNELS]
    return [layer.name for layer in layers]


def _kernels(translator, text: str, translation: str, name: str):
    from keras_seqconv.evaluation import inspection

    inputs, tokens = inspection.sentence(translator, text, translation)
    layers = inspection.dynamic_conv_kernels(translator.model, inputs)
    layer = next(layer for layer in layers if layer.name == name)
    side = tokens[name.partition(" ")[0]]
    return plots.dynamic_conv_kernels(layer.values[0], side, layer.left, name)
