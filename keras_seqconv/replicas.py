"""Batches for a model that several devices train together."""

from keras_seqconv.data.batches import untuned


def for_replicas(model, data):
    """What `fit` and `evaluate` of this model are to be given for `data`.

    Left to Keras, `tf.distribute` reads for each device through a data set of its own,
    which starts the thread that `untuned` is about: every second end of an epoch took
    up to a minute. Here each device makes the batch and takes its rows.

    Args:
        model: on TensorFlow perhaps made in the scope of a strategy.
        data: a `tf.data.Dataset` of batches, which is replaced if there are several
            replicas; anything else is returned as it is.
    """
    strategy = getattr(model, "distribute_strategy", None)
    if strategy is None or strategy.num_replicas_in_sync == 1:
        return data
    import tensorflow as tf

    if not isinstance(data, tf.data.Dataset):
        return data
    replicas = strategy.num_replicas_in_sync

    def of_replica(context):
        place = context.input_pipeline_id

        def rows(tensor):
            count = tf.shape(tensor)[0]
            return tensor[place * count // replicas : (place + 1) * count // replicas]

        return untuned(data.map(lambda *batch: tf.nest.map_structure(rows, batch)))

    options = tf.distribute.InputOptions(
        experimental_replication_mode=tf.distribute.InputReplicationMode.PER_REPLICA,
        experimental_fetch_to_device=False,
    )
    return strategy.distribute_datasets_from_function(of_replica, options)
