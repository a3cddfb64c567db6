//! What can stand in a job.toml with a parameter server: `[server]`, and the settings of its optimisers.

use super::{Field, Topic};

pub(super) const SERVER: Topic = Topic {
    path: "server",
    heading: "[server]",
    says: "How a job of kind = \"parameter-server\" trains: the model lies in shards on several nodes of your party, each with a \
           backup; workers pull values, push gradients, and may come and go.",
    is_open: false,
    fields: &[
        Field {
            key: "workers",
            takes: "a whole number from 1 to 256",
            default: "",
            says: "How many workers there are: the tasks of the job.",
            example: "workers = 4",
        },
        Field {
            key: "steps",
            takes: "a whole number from 1 to 1000000000",
            default: "",
            says: "How many steps each worker makes. With batches = \"dynamic\", how many batches there are in all.",
            example: "steps = 2000",
        },
        Field {
            key: "mode",
            takes: "\"bulk\", \"bounded\" or \"async\"",
            default: "\"bulk\"",
            says: "Who waits for whom. \"bulk\": a step is the mean of all workers' gradients, and the next begins when it is \
                   done. \"bounded\": gradients count as they come, and no worker is more than `delay` steps ahead of the \
                   slowest. \"async\": nobody waits.",
            example: r#"mode = "bounded""#,
        },
        Field {
            key: "delay",
            takes: "a whole number from 0 to 10000",
            default: "3",
            says: "With mode = \"bounded\": how many steps a worker may be ahead of the slowest.",
            example: "delay = 3",
        },
        Field {
            key: "batches",
            takes: "\"fixed\" or \"dynamic\"",
            default: "\"fixed\"",
            says: "\"dynamic\" gives a worker the next batch when it is done with one, so that a slow one does fewer; a batch of \
                   a worker that is gone is given out again, and counts once.",
            example: r#"batches = "dynamic""#,
        },
        Field {
            key: "optimiser",
            takes: "\"sgd\", \"adagrad\" or \"adam\"",
            default: "\"sgd\"",
            says: "What the server does with gradients. Its settings stand in a section of its own, such as [server.sgd].",
            example: r#"optimiser = "adam""#,
        },
        Field {
            key: "shards",
            takes: "a whole number from 1 to 64",
            default: "2",
            says: "Into how many ranges the model is cut; a small one into fewer.",
            example: "shards = 4",
        },
        Field {
            key: "wire",
            takes: "\"f32\", \"f16\", \"bf16\" or \"int8\"",
            default: "\"f32\"",
            says: "How gradients travel. Values are pulled the same way, but with \"int8\" as f16. What is kept is f32.",
            example: r#"wire = "f16""#,
        },
        Field {
            key: "checkpoint",
            takes: "a whole number from 1 to 1000000000",
            default: "100",
            says: "So many steps lie between two checkpoints: what is lost if a shard and its backup are lost together.",
            example: "checkpoint = 500",
        },
        Field {
            key: "start",
            takes: "a model, as datasets are named",
            default: "what the first worker begins with",
            says: "The model to start from.",
            example: r#"start = "mnist-mlp@3""#,
        },
        Field {
            key: "model",
            takes: "a name",
            default: "the job's name",
            says: "What the model is called: a version of a dataset of your party.",
            example: r#"model = "mnist-ps""#,
        },
        Field {
            key: "sgd",
            takes: "a section",
            default: "its defaults",
            says: "Settings of this optimiser; see below.",
            example: "sgd = { rate = 0.05 }",
        },
        Field {
            key: "adagrad",
            takes: "a section",
            default: "its defaults",
            says: "Settings of this optimiser; see below.",
            example: "adagrad = { rate = 0.05 }",
        },
        Field {
            key: "adam",
            takes: "a section",
            default: "its defaults",
            says: "Settings of this optimiser; see below.",
            example: "adam = { rate = 0.002 }",
        },
    ],
};

const EPSILON: Field = Field {
    key: "epsilon",
    takes: "a number above 0",
    default: "1e-8",
    says: "What is added to the root.",
    example: "epsilon = 1e-7",
};

pub(super) const SGD: Topic = Topic {
    path: "server.sgd",
    heading: "[server.sgd]",
    says: "Plain steps against the gradient, with momentum or without.",
    is_open: false,
    fields: &[
        Field {
            key: "rate",
            takes: "a number above 0",
            default: "0.1",
            says: "How far a step goes.",
            example: "rate = 0.05",
        },
        Field {
            key: "momentum",
            takes: "a number from 0 to below 1",
            default: "0",
            says: "How much of the last step goes on.",
            example: "momentum = 0.9",
        },
    ],
};

pub(super) const ADAGRAD: Topic = Topic {
    path: "server.adagrad",
    heading: "[server.adagrad]",
    says: "Smaller steps for values whose gradients were large so far.",
    is_open: false,
    fields: &[
        Field {
            key: "rate",
            takes: "a number above 0",
            default: "0.01",
            says: "How far a step goes.",
            example: "rate = 0.03",
        },
        EPSILON,
    ],
};

pub(super) const ADAM: Topic = Topic {
    path: "server.adam",
    heading: "[server.adam]",
    says: "Adam, with its means drawn up from zero.",
    is_open: false,
    fields: &[
        Field {
            key: "rate",
            takes: "a number above 0",
            default: "0.001",
            says: "How far a step goes.",
            example: "rate = 0.003",
        },
        Field {
            key: "beta1",
            takes: "a number from 0 to below 1",
            default: "0.9",
            says: "Of the running mean of gradients.",
            example: "beta1 = 0.8",
        },
        Field {
            key: "beta2",
            takes: "a number from 0 to below 1",
            default: "0.999",
            says: "Of the running mean of their squares.",
            example: "beta2 = 0.99",
        },
        EPSILON,
    ],
};
