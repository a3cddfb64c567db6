//! What can stand in a job.toml: one table, for the parser's keys and for the text of `mesh help job.toml`.
//!
//! A key that is read and not in the table fails every test that reads a file ([`super::file`] asks for keys by
//! this table), and a test reads every example in it. So what is documented is what is understood.
//!
//! [`TEMPLATES`] are what `mesh job new KIND` writes: the files of `examples/jobs`.

use std::fmt::Write;

mod server;
mod training;

/// A part of the file.
#[derive(Debug)]
pub struct Topic {
    /// Its key: `resources`, `place.labels`; empty for the top of the file.
    pub path: &'static str,
    /// As its header is written: `[resources]`, `[[task]]`.
    pub heading: &'static str,
    /// What it is about.
    pub says: &'static str,
    /// Whether its author chooses the keys. There is then one field, which stands for all.
    pub is_open: bool,
    /// Its keys.
    pub fields: &'static [Field],
}

/// One key.
#[derive(Debug)]
pub struct Field {
    /// What it is called; in capitals where its author chooses.
    pub key: &'static str,
    /// What it takes, to complete "`priority` takes …".
    pub takes: &'static str,
    /// What holds where it is left out; empty where it has to be there.
    pub default: &'static str,
    /// What it means.
    pub says: &'static str,
    /// A line that uses it.
    pub example: &'static str,
}

/// Keys that will mean something in a later version, and what.
pub const RESERVED: [(&str, &str); 1] =
    [("disconnect", "`disconnect` comes in a later version of mesh")];

/// Everything that a job.toml can hold.
pub const TOPICS: &[Topic] = &[
    Topic {
        path: "",
        heading: "the top of the file",
        says: "These stand above the first [section].",
        is_open: false,
        fields: &[
            Field {
                key: "name",
                takes: "a name",
                default: "",
                says: "What people call the job. Many jobs may have one name; the latest is meant.",
                example: r#"name = "mnist-cnn""#,
            },
            Field {
                key: "run",
                takes: "a command (text or a list of words), or the section [run]",
                default: "",
                says: "What to run. Text goes to /bin/sh -c; a list is a program and its arguments. Left out where \
                       there are [[task]]s.",
                example: r#"run = "python train.py""#,
            },
            training::KIND,
            Field {
                key: "class",
                takes: "\"trial\" or \"best-effort\"",
                default: "\"trial\"",
                says: "Whether somebody waits for it. A trial may take the place of a best-effort job, which then \
                       starts again elsewhere or later.",
                example: r#"class = "best-effort""#,
            },
            Field {
                key: "priority",
                takes: "a whole number from 0 to 100",
                default: "50",
                says: "Higher goes first, among jobs of one class.",
                example: "priority = 80",
            },
            Field {
                key: "after",
                takes: "a list of jobs, by name or id",
                default: "none",
                says: "Starts when these are done. If one of them fails, this one does not start.",
                example: r#"after = ["prepare"]"#,
            },
            Field {
                key: "array",
                takes: "a whole number from 1 to 1024",
                default: "none",
                says: "So many tasks that know nothing of one another. Each finds its number, from 0, in \
                       MESH_TASK_INDEX.",
                example: "array = 16",
            },
        ],
    },
    Topic {
        path: "run",
        heading: "[run]",
        says: "What each task runs: the long form of `run`.",
        is_open: false,
        fields: &[
            Field {
                key: "command",
                takes: "text or a list of words",
                default: "",
                says: "Text goes to /bin/sh -c; a list is a program and its arguments. {NAME} stands for a parameter.",
                example: r#"command = ["python", "train.py"]"#,
            },
            training::TRAINER,
            Field {
                key: "image",
                takes: "the name of an image",
                default: "a plain process",
                says: "The container image: one that was pushed with mesh image push, or one that the node's Docker \
                       has or can fetch.",
                example: r#"image = "python:3.12""#,
            },
            Field {
                key: "code",
                takes: "a directory",
                default: "no code",
                says: "A directory beside this file that is packed, hashed and pushed; tasks start in a copy of it. \
                       .meshignore names what stays behind.",
                example: r#"code = ".""#,
            },
        ],
    },
    Topic {
        path: "resources",
        heading: "[resources]",
        says: "What each task needs.",
        is_open: false,
        fields: &[
            Field {
                key: "cpus",
                takes: "a number or a range",
                default: "counted as 1, held to nothing",
                says: "CPU cores; fractions are fine.",
                example: r#"cpus = "2..8""#,
            },
            Field {
                key: "memory",
                takes: "a size or a range of sizes",
                default: "counted as 1GiB, held to nothing",
                says: "Whoever takes more than it was given is killed, and the job says so.",
                example: r#"memory = "8GiB""#,
            },
            Field {
                key: "gpus",
                takes: "a number, a range, a memory size, a model, a list of models, or a section",
                default: "none",
                says: "Which GPUs, and how many; see GPUS below.",
                example: r#"gpus = "H100:2""#,
            },
            Field {
                key: "shm",
                takes: "a size",
                default: "what the host or Docker gives",
                says: "Shared memory (/dev/shm), which data loaders like to have.",
                example: r#"shm = "2GiB""#,
            },
            Field {
                key: "disk",
                takes: "a size",
                default: "not counted",
                says: "Room for what the task writes: it is placed where there is so much, and ended as failed (killed: \
                       disk) soon after it has more in /work and /tmp, its code and checkpoint included. What it only \
                       reads in /data does not count, nor what a container writes beside /work.",
                example: r#"disk = "20GiB""#,
            },
        ],
    },
    Topic {
        path: "resources.gpus",
        heading: "[resources.gpus]",
        says: "GPUs in full, where one word will not do.",
        is_open: false,
        fields: &[
            Field {
                key: "count",
                takes: "a whole number or a range",
                default: "1",
                says: "How many each task gets.",
                example: r#"count = "1..4""#,
            },
            Field {
                key: "memory",
                takes: "a range of sizes",
                default: "any",
                says: "How much memory each has.",
                example: r#"memory = "24GB..""#,
            },
            Field {
                key: "model",
                takes: "text or a list",
                default: "any",
                says: "A part of the model's name, or several, any of which will do.",
                example: r#"model = ["A100", "H100"]"#,
            },
            Field {
                key: "mig",
                takes: "a MIG profile",
                default: "whole GPUs",
                says: "Slices of GPUs that were cut up by MIG.",
                example: r#"mig = "1g.5gb""#,
            },
        ],
    },
    Topic {
        path: "data",
        heading: "[data]",
        says: "Datasets that every task sees, read-only.",
        is_open: true,
        fields: &[Field {
            key: "NAME",
            takes: "the name of a dataset",
            default: "none",
            says: "Mounted at /data/NAME. Which version is meant is settled when the job is submitted. In a federated \
                   job each/mnist is what the party on whose node a task runs calls mnist itself.",
            example: r#"train = "mnist@3""#,
        }],
    },
    Topic {
        path: "gang",
        heading: "[gang]",
        says: "Several tasks that talk to one another: all start or none does, and all start again if one is lost.",
        is_open: false,
        fields: &[Field {
            key: "workers",
            takes: "a whole number from 1 to 1024",
            default: "",
            says: "How many. Each finds RANK, WORLD_SIZE, MASTER_ADDR and their like in its environment.",
            example: "workers = 4",
        }],
    },
    Topic {
        path: "checkpoint",
        heading: "[checkpoint]",
        says: "What the next attempt starts from, on whichever node it is.",
        is_open: false,
        fields: &[
            Field {
                key: "dir",
                takes: "a path in the task's directory",
                default: "",
                says: "A directory of its own that is kept.",
                example: r#"dir = "ckpt/""#,
            },
            Field {
                key: "every",
                takes: "a duration of at least a second",
                default: "1m",
                says: "How often it is looked at for something new.",
                example: r#"every = "5m""#,
            },
        ],
    },
    Topic {
        path: "preempt",
        heading: "[preempt]",
        says: "When a task has to make room.",
        is_open: false,
        fields: &[Field {
            key: "grace",
            takes: "a duration of at most a day",
            default: "30s",
            says: "Between TERM and KILL. The file that MESH_PREEMPT_AT names is there from TERM on, and holds the moment of KILL.",
            example: r#"grace = "2m""#,
        }],
    },
    Topic {
        path: "retry",
        heading: "[retry]",
        says: "Whether a task that failed is tried again. Losing its node and being preempted never count.",
        is_open: false,
        fields: &[
            Field {
                key: "attempts",
                takes: "a whole number from 1 to 100",
                default: "1",
                says: "How many attempts may fail. In a federated job 3, if it is left out.",
                example: "attempts = 3",
            },
            Field {
                key: "on",
                takes: "a list of \"exit:CODE\", \"signal:NUMBER\", \"memory\" and \"time\"",
                default: "every failure",
                says: "After which failures it is tried again.",
                example: r#"on = ["exit:75", "memory"]"#,
            },
            Field {
                key: "backoff",
                takes: "a duration of at most a day",
                default: "1s",
                says: "Before the second attempt; twice as long before each further one.",
                example: r#"backoff = "10s""#,
            },
        ],
    },
    Topic {
        path: "output",
        heading: "[output]",
        says: "What a task leaves behind.",
        is_open: true,
        fields: &[Field {
            key: "NAME",
            takes: "a path in the task's directory",
            default: "none",
            says: "Pushed as a version of the dataset NAME, which remembers what it was made from. {NAME} stands for a \
                   parameter.",
            example: r#"model = "out/""#,
        }],
    },
    Topic {
        path: "task",
        heading: "[[task]]",
        says: "A kind of task, where there are several (worker, ps, chief); write it once for each. All of them start \
               together or none does.",
        is_open: false,
        fields: &[
            Field {
                key: "name",
                takes: "a name",
                default: "",
                says: "What this kind is called.",
                example: r#"name = "worker""#,
            },
            Field {
                key: "count",
                takes: "a whole number from 1 to 1024",
                default: "1",
                says: "How many of it.",
                example: "count = 4",
            },
            Field {
                key: "command",
                takes: "text or a list of words",
                default: "",
                says: "As in [run].",
                example: r#"command = "python worker.py""#,
            },
            Field {
                key: "image",
                takes: "the name of an image",
                default: "that of [run]",
                says: "As in [run].",
                example: r#"image = "python:3.12""#,
            },
            Field {
                key: "resources",
                takes: "a section",
                default: "those of [resources]",
                says: "As in [resources]; what is left out here is taken from there.",
                example: "resources = { cpus = 4 }",
            },
            Field {
                key: "ports",
                takes: "a section",
                default: "none",
                says: "As in [ports].",
                example: r#"ports = { rpc = "auto" }"#,
            },
        ],
    },
    Topic {
        path: "env",
        heading: "[env]",
        says: "The environment. A task sees this, what mesh sets (MESH_…), and nothing of the node's own.",
        is_open: true,
        fields: &[Field {
            key: "VARIABLE",
            takes: "text or a number",
            default: "none",
            says: "{NAME} stands for a parameter.",
            example: r#"OMP_NUM_THREADS = "4""#,
        }],
    },
    Topic {
        path: "secrets",
        heading: "[secrets]",
        says: "Variables that only your party's nodes can read: sealed before they leave this machine's node.",
        is_open: true,
        fields: &[Field {
            key: "VARIABLE",
            takes: "\"env:NAME\", \"file:PATH\", or the secret itself",
            default: "none",
            says: "Where mesh submit finds the value: in its own environment, in a file, or here.",
            example: r#"WANDB_API_KEY = "env:WANDB_API_KEY""#,
        }],
    },
    Topic {
        path: "limits",
        heading: "[limits]",
        says: "What no attempt may exceed.",
        is_open: false,
        fields: &[Field {
            key: "time",
            takes: "a duration of at least a second",
            default: "none",
            says: "How long one attempt may run.",
            example: r#"time = "6h""#,
        }],
    },
    Topic {
        path: "place",
        heading: "[place]",
        says: "Which nodes will do.",
        is_open: false,
        fields: &[
            Field {
                key: "labels",
                takes: "a section of labels",
                default: "any",
                says: "Labels that a node must have, all of them (mesh node label).",
                example: r#"labels = { site = "north" }"#,
            },
            Field {
                key: "nodes",
                takes: "a list of nodes, by name",
                default: "any",
                says: "These nodes only.",
                example: r#"nodes = ["gpu-1", "gpu-2"]"#,
            },
            Field {
                key: "arch",
                takes: "an architecture, such as \"x86_64\"",
                default: "any",
                says: "The processor's architecture.",
                example: r#"arch = "aarch64""#,
            },
            Field {
                key: "spread",
                takes: "\"node\", \"domain\", or a label's name",
                default: "no",
                says: "Keeps tasks apart, as far as there are nodes: on different nodes, in different failure domains, or \
                       on nodes where this label differs.",
                example: r#"spread = "domain""#,
            },
            Field {
                key: "pack",
                takes: "true or false",
                default: "false",
                says: "All tasks on as few nodes as can be.",
                example: "pack = true",
            },
            Field {
                key: "party",
                takes: "the name of a party",
                default: "every node that takes your work",
                says: "On this party's nodes only.",
                example: r#"party = "clinic-a""#,
            },
            Field {
                key: "each",
                takes: "true or false",
                default: "false",
                says: "One task on each node that will do, as of when the job is placed.",
                example: "each = true",
            },
        ],
    },
    Topic {
        path: "place.labels",
        heading: "[place.labels]",
        says: "Labels, one a line.",
        is_open: true,
        fields: &[Field {
            key: "NAME",
            takes: "a label's value",
            default: "none",
            says: "The value that the node's label must have.",
            example: r#"site = "north""#,
        }],
    },
    Topic {
        path: "params",
        heading: "[params]",
        says: "Parameters: what changes from one run to the next.",
        is_open: true,
        fields: &[Field {
            key: "NAME",
            takes: "text, a number, or true or false",
            default: "none",
            says: "Its value unless mesh submit --set NAME=VALUE gives another. Filled in for {NAME} in commands, in [env] \
                   and in paths; a task finds it in MESH_PARAM_NAME, too.",
            example: "lr = 0.1",
        }],
    },
    Topic {
        path: "ports",
        heading: "[ports]",
        says: "Ports that a task listens on (mesh port reaches them from any node).",
        is_open: true,
        fields: &[Field {
            key: "NAME",
            takes: "a port from 1 to 65535, or \"auto\"",
            default: "none",
            says: "With \"auto\" mesh picks one that is free and tells the task.",
            example: "http = 8080",
        }],
    },
    training::FEDERATED,
    training::FEDAVG,
    training::FEDPROX,
    training::FEDADAM,
    training::FEDYOGI,
    training::FEDADAGRAD,
    training::FEDBUFF,
    training::DILOCO,
    training::TRIMMED_MEAN,
    training::PRIVACY,
    server::SERVER,
    server::SGD,
    server::ADAGRAD,
    server::ADAM,
];

/// How values are written, beside what TOML says.
const WORDS: &str = r#"VALUES
    names       1 to 63 of a-z 0-9 . _ -, the first a letter or a digit
    durations   a whole number and a unit: 250ms 30s 5m 6h 7d
    sizes       a whole number and a unit: 512MiB 8GiB (powers of 1024), 500MB 24GB (powers of 1000)
    ranges      "2..8" is at least 2, and up to 8 where the node has them to spare; "2.." is as many as it has;
                "4GiB..16GiB" likewise. A plain value is just that much
    datasets    [party/]name, which is the latest, [party/]name@3, [party/]name:tag; each/name is every party's own

GPUS
    gpus = 1                one, of any model
    gpus = "1..4"           one to four
    gpus = "24GB.."         one with 24 GB or more; "24GB..48GB" with no more than 48
    gpus = "H100"           one of this model: a part of its name, in small or capital letters
    gpus = ["A100", "H100"] one of any of these
    gpus = "mig-1g.5gb"     a MIG slice
    A count goes last: "H100:2", "A100:1..2", "24GB..:4", "mig-1g.5gb:2". For more, write [resources.gpus].

PARAMETERS
    {lr} stands for the parameter lr in commands, in [env], in [output] and in the checkpoint's dir. {{lr}} stands for
    {lr} itself. Braces around anything else, and ${lr}, are left as they are."#;

/// The part of the file at `path`.
pub fn topic(path: &str) -> Option<&'static Topic> {
    TOPICS.iter().find(|topic| topic.path == path)
}

impl Topic {
    /// What is known of a key here.
    pub fn field(&self, key: &str) -> Option<&'static Field> {
        if self.is_open {
            return self.fields.first();
        }
        self.fields.iter().find(|field| field.key == key)
    }

    /// All keys here, sections among them.
    pub fn keys(&self) -> impl Iterator<Item = &'static str> {
        let is_top = self.path.is_empty();
        let fields = self.fields.iter().filter(|_| !self.is_open).map(|field| field.key);
        let inner = TOPICS.iter().filter(move |_| is_top).map(|topic| topic.path);
        // `run` is a field and a section.
        fields.chain(inner.filter(|path| !path.is_empty() && !path.contains('.') && *path != "run"))
    }
}

/// What `mesh help job.toml` prints.
pub fn text() -> String {
    let mut out = String::from(
        "job.toml says what to run, what it needs and what is kept of it. The smallest one:\n\n    \
         name = \"hello\"\n    run = \"echo hello\"\n\n",
    );
    let kinds: Vec<&str> = TEMPLATES.iter().map(|template| template.kind).collect();
    let hint = format!("mesh job new KIND writes one to start from: {}.", kinds.join(", "));
    push(&mut out, "", &hint);
    for topic in TOPICS {
        let heading = if topic.path.is_empty() { "THE TOP OF THE FILE" } else { topic.heading };
        let _ = write!(out, "\n{heading}\n");
        push(&mut out, "    ", topic.says);
        for field in topic.fields {
            let _ = write!(out, "\n    {}\n", field.example);
            let default = match field.default {
                "" => "has to be there".to_owned(),
                text => format!("left out: {text}"),
            };
            push(&mut out, "        ", &format!("{} takes {}; {default}.", field.key, field.takes));
            push(&mut out, "        ", field.says);
        }
    }
    let _ = write!(out, "\n{WORDS}\n");
    out
}

/// Adds a paragraph, in lines that fit a terminal.
fn push(out: &mut String, indent: &str, text: &str) {
    const WIDTH: usize = 100;
    let mut line = String::from(indent);
    for word in text.split_whitespace() {
        let has_words = line.len() > indent.len();
        if has_words && line.chars().count() + 1 + word.chars().count() > WIDTH {
            let _ = writeln!(out, "{line}");
            line = String::from(indent);
        } else if has_words {
            line.push(' ');
        }
        line.push_str(word);
    }
    let _ = writeln!(out, "{line}");
}

/// A file to start from.
#[derive(Debug)]
pub struct Template {
    /// What it is called: `mesh job new KIND`.
    pub kind: &'static str,
    /// What it is for.
    pub says: &'static str,
    /// The file.
    pub text: &'static str,
}

/// The files to start from. The first is written where no kind is named.
pub const TEMPLATES: [Template; 8] = [
    Template {
        kind: "process",
        says: "a command, as a plain process",
        text: include_str!("../../../examples/jobs/process.toml"),
    },
    Template {
        kind: "container",
        says: "training in a container, with data, a GPU and checkpoints",
        text: include_str!("../../../examples/jobs/container.toml"),
    },
    Template {
        kind: "gang",
        says: "several workers that start together, as torch.distributed wants it",
        text: include_str!("../../../examples/jobs/gang.toml"),
    },
    Template {
        kind: "array",
        says: "the same command many times, each with its own number",
        text: include_str!("../../../examples/jobs/array.toml"),
    },
    Template {
        kind: "pipeline",
        says: "a job that starts when another is done, with what that one left behind",
        text: include_str!("../../../examples/jobs/pipeline.toml"),
    },
    Template {
        kind: "tasks",
        says: "several kinds of task: workers and parameter servers",
        text: include_str!("../../../examples/jobs/tasks.toml"),
    },
    Template {
        kind: "federated",
        says: "one model, trained by several parties, each on its own data",
        text: include_str!("../../../examples/jobs/federated.toml"),
    },
    Template {
        kind: "parameter-server",
        says: "one model in shards on several nodes; workers pull and push",
        text: include_str!("../../../examples/jobs/parameter-server.toml"),
    },
];

/// The file to start from for a kind of job.
pub fn template(kind: &str) -> Option<&'static Template> {
    TEMPLATES.iter().find(|template| template.kind == kind)
}

#[cfg(test)]
mod tests {
    use super::super::file::JobFile;
    use super::*;

    /// A sound file with one line more in that part of it.
    fn with(topic: &Topic, field: &Field) -> String {
        let base = "name = \"x\"\nrun = \"true\"\n";
        let who = "parties = \"each\"\nrounds = 1";
        let rounds = format!("[federated]\n{who}");
        let example = field.example;
        match (topic.path, field.key) {
            ("", "name") => format!("{example}\nrun = \"true\""),
            ("", "run") => format!("name = \"x\"\n{example}"),
            ("", "kind") => format!("{base}{example}\n{rounds}"),
            ("", _) => format!("{base}{example}"),
            ("run", "command") => format!("name = \"x\"\n[run]\n{example}"),
            ("run", "trainer") => {
                format!("name = \"x\"\nkind = \"federated\"\n{rounds}\n[run]\n{example}")
            }
            ("federated", key) => {
                let with = match (key, super::topic(&format!("federated.{key}")).is_some()) {
                    ("parties", _) => "rounds = 1".to_owned(),
                    ("rounds", _) => "parties = \"each\"".to_owned(),
                    ("select_count", _) => format!("{who}\nselect = \"random\""),
                    ("select", _) => format!("{who}\nselect_count = 3"),
                    ("tiers", _) => format!("{who}\nselect = \"tiers\"\nselect_count = 3"),
                    (_, true) => format!("{who}\nstrategy = \"{key}\""),
                    _ => who.to_owned(),
                };
                format!("{base}kind = \"federated\"\n[federated]\n{with}\n{example}")
            }
            (path, _) if path.starts_with("federated.") => {
                let chosen = path.trim_start_matches("federated.");
                let heading = topic.heading;
                let strategy = format!("strategy = \"{chosen}\"\n{heading}\n{example}");
                format!("{base}kind = \"federated\"\n{rounds}\n{strategy}")
            }
            ("server", key) => {
                let steps = ["workers = 2", "steps = 9"];
                let steps: Vec<&str> =
                    steps.into_iter().filter(|line| !line.starts_with(key)).collect();
                let with = match (key, super::topic(&format!("server.{key}")).is_some()) {
                    ("delay", _) => "mode = \"bounded\"",
                    ("batches", _) => "mode = \"async\"",
                    ("adagrad", _) => "optimiser = \"adagrad\"",
                    ("adam", _) => "optimiser = \"adam\"",
                    _ => "",
                };
                let steps = steps.join("\n");
                format!("{base}kind = \"parameter-server\"\n[server]\n{steps}\n{with}\n{example}")
            }
            (path, _) if path.starts_with("server.") => {
                let chosen = path.trim_start_matches("server.");
                let optimiser = format!("optimiser = \"{chosen}\"\n{}\n{example}", topic.heading);
                let steps = "[server]\nworkers = 2\nsteps = 9";
                format!("{base}kind = \"parameter-server\"\n{steps}\n{optimiser}")
            }
            ("privacy", key) => {
                let epsilon = if key == "epsilon" { "" } else { "epsilon = 1\n" };
                format!("{base}kind = \"federated\"\n{rounds}\n[privacy]\n{epsilon}{example}")
            }
            ("run", _) => format!("name = \"x\"\n[run]\ncommand = \"true\"\n{example}"),
            ("checkpoint", "every") => format!("{base}[checkpoint]\ndir = \"c\"\n{example}"),
            ("task", key) => {
                let rest = ["name = \"w\"", "command = \"true\""];
                let rest: Vec<&str> =
                    rest.into_iter().filter(|line| !line.starts_with(key)).collect();
                format!("name = \"x\"\n[[task]]\n{}\n{example}", rest.join("\n"))
            }
            _ => format!("{base}{}\n{example}", topic.heading),
        }
    }

    #[test]
    fn every_example_is_understood() {
        for topic in TOPICS {
            for field in topic.fields {
                let text = with(topic, field);
                let said = JobFile::parse(&text).map_err(|error| error.to_string());
                assert!(said.is_ok(), "{text}\n{}", said.unwrap_err());
            }
        }
    }

    #[test]
    fn every_template_is_understood() {
        for template in &TEMPLATES {
            let said = JobFile::parse(template.text).map_err(|error| error.to_string());
            assert!(said.is_ok(), "{}: {}", template.kind, said.unwrap_err());
            assert!(template.text.contains("mesh help job.toml"), "{}", template.kind);
        }
        assert_eq!(TEMPLATES[0].kind, "process");
        assert!(template("gang").is_some() && template("gong").is_none());
    }

    #[test]
    fn every_file_of_examples_is_a_template() {
        let jobs = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/jobs");
        let mut files: Vec<String> = std::fs::read_dir(jobs)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter_map(|name| name.strip_suffix(".toml").map(str::to_owned))
            .collect();
        files.sort();
        let mut kinds: Vec<&str> = TEMPLATES.iter().map(|template| template.kind).collect();
        kinds.sort_unstable();
        assert_eq!(files, kinds);
    }

    #[test]
    fn the_help_names_every_key_and_fits_a_terminal() {
        let text = text();
        for topic in TOPICS {
            for field in topic.fields {
                assert!(text.contains(field.example), "{}", field.example);
                assert!(!field.takes.is_empty() && field.says.ends_with('.'), "{}", field.key);
            }
        }
        for line in text.lines() {
            assert!(line.chars().count() <= 120, "{line}");
        }
    }

    #[test]
    fn the_defaults_are_those_of_the_spec() {
        use super::super::spec::{DEFAULT_GRACE_MS, DEFAULT_PRIORITY, Retry};
        let default = |path, key| topic(path).and_then(|topic| topic.field(key)).unwrap().default;
        assert_eq!(default("", "priority"), DEFAULT_PRIORITY.to_string());
        assert_eq!(default("preempt", "grace"), format!("{}s", DEFAULT_GRACE_MS / 1000));
        assert_eq!(default("retry", "attempts"), Retry::default().attempts.to_string());
        assert_eq!(default("retry", "backoff"), format!("{}s", Retry::default().backoff_ms / 1000));
    }

    #[test]
    fn a_key_is_described_once() {
        for topic in TOPICS {
            let mut keys: Vec<_> = topic.keys().collect();
            keys.sort_unstable();
            let all = keys.len();
            keys.dedup();
            assert_eq!(keys.len(), all, "{}", topic.heading);
        }
    }
}
