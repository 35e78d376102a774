"""The input pipeline of a learner: reads stored shards ahead, decodes them, stages them on the device."""
