//! What can stand in a job.toml that trains: `kind`, `[federated]` and its strategies, `[privacy]`.

use super::{Field, Topic};

pub(super) const KIND: Field = Field {
    key: "kind",
    takes: "\"federated\" or \"parameter-server\"",
    default: "a job that does not train",
    says: "Whether the job trains a model: \"federated\" has one task for each party, which trains on that party's own \
           data; see [federated]. \"parameter-server\" has workers that pull a model from several nodes and push \
           gradients to them; see [server].",
    example: r#"kind = "federated""#,
};

pub(super) const TRAINER: Field = Field {
    key: "trainer",
    takes: "\"logistic\", \"mlp\" or \"cnn\"",
    default: "the command trains",
    says: "In place of a command, in a job that trains: the trainer that is a part of mesh, and the model that it trains. \
           Its settings are in [params]: lr, momentum, batch, epochs, images, hidden, seed.",
    example: r#"trainer = "mlp""#,
};

pub(super) const FEDERATED: Topic = Topic {
    path: "federated",
    heading: "[federated]",
    says: "How a job of kind = \"federated\" trains: round by round, each party on its own data, their updates brought \
           together into the next model.",
    is_open: false,
    fields: &[
        Field {
            key: "parties",
            takes: "a list of parties, by name, or \"each\"",
            default: "",
            says: "Who takes part; \"each\" is every party that has a node. A node of another party takes part if its party \
                   labelled it so: mesh node label NODE trains=PARTY, with yours, or trains=all.",
            example: r#"parties = ["clinic-a", "clinic-b", "lab"]"#,
        },
        Field {
            key: "rounds",
            takes: "a whole number from 1 to 100000",
            default: "",
            says: "How many.",
            example: "rounds = 20",
        },
        Field {
            key: "strategy",
            takes: "\"fedavg\", \"fedprox\", \"fedadam\", \"fedyogi\", \"fedadagrad\", \"fedbuff\", \"diloco\", \
                    \"median\" or \"trimmed-mean\"",
            default: "\"fedavg\"",
            says: "How updates become the next model. Its settings stand in a section of its own, such as [federated.fedavg].",
            example: r#"strategy = "fedavg""#,
        },
        Field {
            key: "min_parties",
            takes: "a whole number from 1 to 64",
            default: "half of the parties, rounded up",
            says: "With fewer updates no round counts.",
            example: "min_parties = 2",
        },
        Field {
            key: "deadline",
            takes: "\"auto\", or a duration from a second to a day",
            default: "\"auto\"",
            says: "How long a round waits for the others once it has enough; \"auto\" is what the times of the parties suggest.",
            example: r#"deadline = "90s""#,
        },
        Field {
            key: "aggregators",
            takes: "a list of parties, by name",
            default: "your party",
            says: "Whose nodes sum the updates, and so see single ones.",
            example: r#"aggregators = ["lab"]"#,
        },
        Field {
            key: "wire",
            takes: "\"f32\", \"f16\", \"bf16\" or \"int8\"",
            default: "\"f32\"",
            says: "How updates travel. What is summed is f32.",
            example: r#"wire = "f16""#,
        },
        Field {
            key: "select",
            takes: "\"all\", \"random\" or \"tiers\"",
            default: "\"all\"",
            says: "Who takes part in a round: all, so many drawn at random, or so many of those who are about as fast as \
                   one another.",
            example: r#"select = "random""#,
        },
        Field {
            key: "select_count",
            takes: "a whole number from 1 to 64",
            default: "has to be there with \"random\" and \"tiers\"",
            says: "How many a round waits for.",
            example: "select_count = 3",
        },
        Field {
            key: "tiers",
            takes: "a whole number from 1 to 16",
            default: "5",
            says: "With select = \"tiers\": into how many the parties are divided by how fast they are.",
            example: "tiers = 3",
        },
        Field {
            key: "start",
            takes: "a model, as datasets are named",
            default: "what the first party begins with",
            says: "The model to start from.",
            example: r#"start = "mnist-mlp@3""#,
        },
        Field {
            key: "model",
            takes: "a name",
            default: "the job's name",
            says: "What the model is called: a version of a dataset of your party.",
            example: r#"model = "mnist-mlp""#,
        },
        Field {
            key: "fedavg",
            takes: "a section",
            default: "its defaults",
            says: "Settings of this strategy; see below.",
            example: "fedavg = { rate = 0.5 }",
        },
        Field {
            key: "fedprox",
            takes: "a section",
            default: "its defaults",
            says: "Settings of this strategy; see below.",
            example: "fedprox = { mu = 0.1 }",
        },
        Field {
            key: "fedadam",
            takes: "a section",
            default: "its defaults",
            says: "Settings of this strategy; see below.",
            example: "fedadam = { rate = 0.03 }",
        },
        Field {
            key: "fedyogi",
            takes: "a section",
            default: "its defaults",
            says: "Settings of this strategy; see below.",
            example: "fedyogi = { rate = 0.03 }",
        },
        Field {
            key: "fedadagrad",
            takes: "a section",
            default: "its defaults",
            says: "Settings of this strategy; see below.",
            example: "fedadagrad = { rate = 0.03 }",
        },
        Field {
            key: "fedbuff",
            takes: "a section",
            default: "its defaults",
            says: "Settings of this strategy; see below.",
            example: "fedbuff = { buffer = 4 }",
        },
        Field {
            key: "diloco",
            takes: "a section",
            default: "its defaults",
            says: "Settings of this strategy; see below.",
            example: "diloco = { rate = 0.5 }",
        },
        Field {
            key: "trimmed-mean",
            takes: "a section",
            default: "its defaults",
            says: "Settings of this strategy; see below.",
            example: "trimmed-mean = { trim = 0.3 }",
        },
    ],
};

pub(super) const FEDAVG: Topic = Topic {
    path: "federated.fedavg",
    heading: "[federated.fedavg]",
    says: "The mean of the updates, by examples.",
    is_open: false,
    fields: &[Field {
        key: "rate",
        takes: "a number above 0",
        default: "1",
        says: "What the mean is multiplied by.",
        example: "rate = 0.5",
    }],
};

pub(super) const FEDPROX: Topic = Topic {
    path: "federated.fedprox",
    heading: "[federated.fedprox]",
    says: "The mean, where each party stays near the model that it began with: for data that differs much.",
    is_open: false,
    fields: &[Field {
        key: "mu",
        takes: "a number that is not negative",
        default: "0.01",
        says: "How near.",
        example: "mu = 0.1",
    }],
};

const ADAPTIVE_RATE: Field = Field {
    key: "rate",
    takes: "a number above 0",
    default: "0.01",
    says: "The server's learning rate.",
    example: "rate = 0.03",
};
const BETA1: Field = Field {
    key: "beta1",
    takes: "a number from 0 up to 1, and not 1",
    default: "0.9",
    says: "How much of the mean of earlier rounds stays.",
    example: "beta1 = 0.8",
};
const BETA2: Field = Field {
    key: "beta2",
    takes: "a number from 0 up to 1, and not 1",
    default: "0.99",
    says: "How much of the mean of their squares stays.",
    example: "beta2 = 0.999",
};
const TAU: Field = Field {
    key: "tau",
    takes: "a number above 0",
    default: "0.001",
    says: "What is added to the root of the squares: the larger, the less they matter.",
    example: "tau = 0.01",
};

pub(super) const FEDADAM: Topic = Topic {
    path: "federated.fedadam",
    heading: "[federated.fedadam]",
    says: "Adam on the server, with the mean of the updates as its gradient.",
    is_open: false,
    fields: &[ADAPTIVE_RATE, BETA1, BETA2, TAU],
};

pub(super) const FEDYOGI: Topic = Topic {
    path: "federated.fedyogi",
    heading: "[federated.fedyogi]",
    says: "Yogi on the server.",
    is_open: false,
    fields: &[ADAPTIVE_RATE, BETA1, BETA2, TAU],
};

pub(super) const FEDADAGRAD: Topic = Topic {
    path: "federated.fedadagrad",
    heading: "[federated.fedadagrad]",
    says: "Adagrad on the server.",
    is_open: false,
    fields: &[ADAPTIVE_RATE, BETA1, TAU],
};

pub(super) const FEDBUFF: Topic = Topic {
    path: "federated.fedbuff",
    heading: "[federated.fedbuff]",
    says: "Nobody waits for anybody: whoever is ready contributes, and every few updates make a model.",
    is_open: false,
    fields: &[
        Field {
            key: "buffer",
            takes: "a whole number from 1 to 64",
            default: "10, or as many as there are parties",
            says: "How many updates make a model.",
            example: "buffer = 4",
        },
        Field {
            key: "rate",
            takes: "a number above 0",
            default: "1",
            says: "What their mean is multiplied by.",
            example: "rate = 0.5",
        },
        Field {
            key: "max_staleness",
            takes: "a whole number from 0 to 1000",
            default: "8",
            says: "An update that began more models ago is refused.",
            example: "max_staleness = 4",
        },
    ],
};

pub(super) const DILOCO: Topic = Topic {
    path: "federated.diloco",
    heading: "[federated.diloco]",
    says: "Many steps at each party, then one of Nesterov's on the server: for slow links.",
    is_open: false,
    fields: &[
        Field {
            key: "rate",
            takes: "a number above 0",
            default: "0.7",
            says: "The server's learning rate.",
            example: "rate = 0.5",
        },
        Field {
            key: "momentum",
            takes: "a number from 0 up to 1, and not 1",
            default: "0.9",
            says: "The server's momentum.",
            example: "momentum = 0.8",
        },
    ],
};

pub(super) const TRIMMED_MEAN: Topic = Topic {
    path: "federated.trimmed-mean",
    heading: "[federated.trimmed-mean]",
    says: "The mean of each value without its extremes: for when some party may send nonsense.",
    is_open: false,
    fields: &[Field {
        key: "trim",
        takes: "a number from 0 up to 0.5, and not 0.5",
        default: "0.2",
        says: "Which share of the updates is left out at each end.",
        example: "trim = 0.3",
    }],
};

pub(super) const PRIVACY: Topic = Topic {
    path: "privacy",
    heading: "[privacy]",
    says: "Differential privacy in a federated job: what keeps single examples from being read out of the model. The job \
           ends when the budget is spent.",
    is_open: false,
    fields: &[
        Field {
            key: "epsilon",
            takes: "a number above 0",
            default: "",
            says: "What may be spent in all: the smaller, the more private.",
            example: "epsilon = 8.0",
        },
        Field {
            key: "delta",
            takes: "a number above 0 and below 1",
            default: "0.00001",
            says: "The chance that more was spent.",
            example: "delta = 0.001",
        },
        Field {
            key: "noise",
            takes: "a number above 0",
            default: "1",
            says: "How much noise is added, in multiples of clip.",
            example: "noise = 1.5",
        },
        Field {
            key: "clip",
            takes: "a number above 0",
            default: "1",
            says: "The largest norm of an update; larger ones are scaled down.",
            example: "clip = 0.5",
        },
        Field {
            key: "where",
            takes: "\"party\" or \"aggregator\"",
            default: "\"party\"",
            says: "Who adds the noise: each party, to its own update, so that nobody has to be trusted; or the aggregator, to \
                   the sum, where less of it will do.",
            example: r#"where = "aggregator""#,
        },
    ],
};
