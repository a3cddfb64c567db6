//! Whole files: each form, each mistake as it is shown, what becomes of a file, and files that mean harm.

use std::collections::BTreeMap;

use mesh_consensus::id::{JobId, VersionId};
use proptest::prelude::*;

use super::super::help::TEMPLATES;
use super::super::spec::{
    Class, GpuAsk, Image, JobSpec, Mount, OWN_BINARY, Range, RetryOn, SealedSecret, Source,
};
use super::super::training::{Federated, NoiseAt, Real, Select, Strategy as Rule, Training, Wire};
use super::*;

/// What a test's mesh has.
struct Shelf;

impl Lookup for Shelf {
    fn version(&self, data: &DataRef) -> Result<Mount, NotFound> {
        if data.name.as_str() == "missing" {
            let message = format!("there is no dataset `{data}`");
            return Err(NotFound { message, fix: "did you mean `mnist`?".into() });
        }
        let what = Source::Version(VersionId([7; 16]));
        Ok(Mount { what, shown: Some(data.to_string()), bytes: 11 })
    }

    fn job(&self, job: &str) -> Result<JobId, NotFound> {
        match job {
            "missing" => {
                Err(NotFound { message: "there is no job `missing`".into(), fix: String::new() })
            }
            "prepare" | "0707" => Ok(JobId([7; 16])),
            _ => Ok(JobId([8; 16])),
        }
    }

    fn image(&self, image: &str) -> Image {
        match image {
            "pushed" => Image::Pushed { name: image.into(), version: VersionId([9; 16]) },
            _ => Image::Named(image.into()),
        }
    }

    fn seal(&self, variable: &str, value: &[u8]) -> Result<SealedSecret, String> {
        match variable {
            "UNSEALABLE" => Err("this node has no key to seal with".into()),
            _ => Ok(SealedSecret(value.iter().rev().copied().collect())),
        }
    }

    fn parties(&self) -> Vec<Name> {
        ["a", "b", "clinic-a", "lab"].map(name).to_vec()
    }

    fn own_party(&self) -> Option<Name> {
        Some(name("lab"))
    }
}

fn parse(text: &str) -> JobFile {
    JobFile::parse(text).unwrap_or_else(|error| panic!("{text}\n{error}"))
}

fn given() -> Given {
    Given { code: Some(VersionId([5; 16])), ..Given::default() }
}

fn spec(text: &str) -> JobSpec {
    parse(text).settle(&given(), &Shelf).unwrap_or_else(|error| panic!("{text}\n{error}"))
}

/// A small file with something more.
fn more(text: &str) -> String {
    format!("name = \"x\"\nrun = \"true\"\n{text}")
}

/// A small file of a job that trains, with something more in its `[federated]`.
fn trains(text: &str) -> String {
    let top = "name = \"x\"\nkind = \"federated\"\nrun = \"true\"\n";
    format!("{top}[federated]\nparties = [\"a\", \"b\"]\n{text}")
}

/// What stands in the log of how a job trains.
fn federated(text: &str) -> Federated {
    match spec(text).training {
        Some(Training::Federated(federated)) => federated,
        _ => panic!("it does not train so: {text}"),
    }
}

fn real(number: f64) -> Real {
    Real::new(number).unwrap()
}

/// The mistakes of a file, each as `line:column message | fix`.
fn mistakes(text: &str) -> Vec<String> {
    let Err(error) = JobFile::parse(text) else { return Vec::new() };
    let one = |mistake: &Mistake| {
        let Mistake { line, column, message, fix, .. } = mistake;
        format!("{line}:{column} {message} | {}", fix.as_deref().unwrap_or("-"))
    };
    error.mistakes.iter().map(one).collect()
}

/// The only mistake of a file.
fn mistake(text: &str) -> String {
    let all = mistakes(text);
    assert_eq!(all.len(), 1, "{text}\n{all:#?}");
    all.into_iter().next().unwrap()
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

#[test]
fn the_smallest_file_runs_a_line_in_the_shell() {
    let spec = spec("name = \"hello\"\nrun = \"echo hi\"");
    assert_eq!(spec.name.as_str(), "hello");
    assert_eq!(spec.groups.len(), 1);
    assert_eq!(spec.groups[0].name.as_str(), "worker");
    assert_eq!(spec.groups[0].argv, ["/bin/sh", "-c", "echo hi"]);
    assert_eq!((spec.groups[0].count, spec.gang, spec.class), (1, false, Class::Trial));
    assert_eq!((spec.priority, spec.grace_ms, spec.code), (50, 30_000, None));
}

#[test]
fn a_list_is_a_program_and_its_arguments() {
    let words = |text: &str| spec(text).groups[0].argv.clone();
    assert_eq!(words("name = \"x\"\nrun = [\"a\", \"b c\", 3, 0.5]"), ["a", "b c", "3", "0.5"]);
    assert_eq!(words("name = \"x\"\n[run]\ncommand = [\"a\"]"), ["a"]);
    assert_eq!(words("name = \"x\"\nrun.command = \"a b\""), ["/bin/sh", "-c", "a b"]);
    assert_eq!(words("name = \"x\"\nrun = { command = [\"a\"] }"), ["a"]);
}

#[test]
fn the_file_of_the_issue_is_understood() {
    let spec = spec(
        r#"
        name = "mnist-cnn"
        class = "best-effort"
        priority = 70
        after = ["prepare", "0707", "other"]
        [run]
        image = "python:3.12"
        command = ["python", "train.py", "--lr", "{lr}"]
        code = "."
        [params]
        lr = 1e-3
        [resources]
        gpus = 1
        cpus = 2
        memory = "8GiB"
        shm = "1GiB"
        disk = "5GB"
        [data]
        train = "mnist@3"
        test = "lab/mnist:clean"
        [gang]
        workers = 4
        [checkpoint]
        dir = "ckpt/"
        every = "30s"
        [preempt]
        grace = "45s"
        [retry]
        attempts = 3
        on = ["exit:75", "memory"]
        backoff = "5s"
        [output]
        model = "out/{lr}"
        [env]
        LR = "{lr}"
        N = 4
        DEBUG = true
        [limits]
        time = "6h"
        [ports]
        http = 8080
        rpc = "auto"
        [place]
        labels = { site = "north", rack = 3 }
        nodes = ["gpu-1", "gpu-2"]
        arch = "amd64"
        spread = "domain"
        party = "lab"
        "#,
    );
    assert_eq!((spec.class, spec.priority), (Class::BestEffort, 70));
    assert_eq!(spec.after, [JobId([7; 16]), JobId([8; 16])]);
    let group = &spec.groups[0];
    assert_eq!(group.argv, ["python", "train.py", "--lr", "1e-3"]);
    assert_eq!(group.image, Some(Image::Named("python:3.12".into())));
    assert_eq!((group.count, spec.gang), (4, true));
    assert_eq!(group.resources.cpu_milli, Some(Range::just(2000)));
    assert_eq!(group.resources.memory_bytes, Some(Range::just(8 << 30)));
    assert_eq!((group.resources.shm_bytes, group.resources.disk_bytes), (1 << 30, 5_000_000_000));
    assert_eq!(group.resources.gpus.as_ref().map(|gpus| gpus.count), Some(Range::just(1)));
    assert_eq!(group.ports, BTreeMap::from([(name("http"), Some(8080)), (name("rpc"), None)]));
    assert_eq!(spec.data[&name("train")].shown.as_deref(), Some("mnist@3"));
    assert_eq!(spec.data[&name("test")].shown.as_deref(), Some("lab/mnist:clean"));
    assert_eq!(spec.code, Some(VersionId([5; 16])));
    let checkpoint = spec.checkpoint.as_ref().unwrap();
    assert_eq!((checkpoint.path.as_str(), checkpoint.every_ms), ("ckpt/", 30_000));
    assert_eq!((spec.grace_ms, spec.time_limit_ms), (45_000, Some(21_600_000)));
    assert_eq!((spec.retry.attempts, spec.retry.backoff_ms), (3, 5000));
    assert_eq!(spec.retry.on, [RetryOn::Exit(75), RetryOn::Memory].into());
    assert_eq!(spec.outputs[&name("model")].path, "out/1e-3");
    let env: Vec<_> = spec.env.iter().map(|(key, value)| format!("{key}={value}")).collect();
    assert_eq!(env, ["DEBUG=true", "LR=1e-3", "N=4"]);
    assert_eq!(spec.place.labels[&name("rack")].as_str(), "3");
    assert_eq!(spec.place.nodes.len(), 2);
    assert_eq!(spec.place.arch.as_deref(), Some("x86_64"));
    assert_eq!(spec.place.spread, Some(name("domain")));
    assert_eq!(spec.place.party, Some(name("lab")));
    assert_eq!(spec.params[&name("lr")], "1e-3");
    assert_eq!(spec.flaw(), None);
}

#[test]
fn tasks_take_what_they_leave_out_from_the_job() {
    let spec = spec(
        r#"
        name = "x"
        [run]
        image = "pushed"
        [resources]
        cpus = 2
        memory = "1GiB"
        [[task]]
        name = "chief"
        command = "a"
        [[task]]
        name = "worker"
        count = 3
        command = ["b"]
        image = "other:1"
        [task.resources]
        memory = "2GiB"
        gpus = { count = "1..2", model = ["A100", "h100"], memory = "40GB..", mig = "1g.5gb" }
        [task.ports]
        rpc = 99
        "#,
    );
    let [chief, worker] = &spec.groups[..] else { panic!("{spec:?}") };
    assert!(spec.gang);
    assert_eq!((chief.count, worker.count, spec.tasks()), (1, 3, 4));
    assert!(matches!(&chief.image, Some(Image::Pushed { name, .. }) if name == "pushed"));
    assert_eq!(worker.image, Some(Image::Named("other:1".into())));
    assert_eq!(chief.resources.memory_bytes, Some(Range::just(1 << 30)));
    assert_eq!(worker.resources.memory_bytes, Some(Range::just(2 << 30)));
    assert_eq!(worker.resources.cpu_milli, Some(Range::just(2000)));
    let gpus = GpuAsk {
        count: Range { min: 1, max: 2 },
        min_memory_mib: 38_146,
        max_memory_mib: None,
        models: vec!["a100".into(), "h100".into()],
        mig: Some("1g.5gb".into()),
    };
    assert_eq!((&chief.resources.gpus, &worker.resources.gpus), (&None, &Some(gpus)));
    assert_eq!(worker.ports, BTreeMap::from([(name("rpc"), Some(99))]));
}

#[test]
fn gpus_are_asked_for_in_many_ways() {
    let gpus = |text: &str| {
        spec(&more(&format!("[resources]\ngpus = {text}"))).groups[0].resources.gpus.clone()
    };
    assert_eq!(gpus("0"), None);
    assert_eq!(gpus("2").unwrap().count, Range::just(2));
    assert_eq!(gpus("\"1..4\"").unwrap().count, Range { min: 1, max: 4 });
    assert_eq!(gpus("[\"H100\", \"A100\"]").unwrap().models, ["a100", "h100"]);
    assert_eq!(gpus("{ model = \"4090\" }").unwrap().models, ["4090"]);
    assert_eq!(gpus("{ count = 2 }").unwrap().count, Range::just(2));
    let table =
        spec(&more("[resources.gpus]\nmemory = \"10GiB..20GiB\"")).groups[0].resources.gpus.clone();
    assert_eq!(
        table.map(|gpus| (gpus.min_memory_mib, gpus.max_memory_mib)),
        Some((10240, Some(20480)))
    );
}

#[test]
fn arrays_and_each_say_how_many() {
    let array = spec(&more("array = 16\n[ports]\nhttp = \"auto\""));
    assert_eq!((array.tasks(), array.gang), (16, false));
    let each = spec(&more("[place]\neach = true\n[ports]\nhttp = 80"));
    assert!(each.place.each && !each.gang);
    let each = spec("name = \"x\"\n[place]\neach = true\n[[task]]\nname = \"a\"\ncommand = \"b\"");
    assert!(each.place.each && !each.gang);
}

#[test]
fn an_unknown_key_is_shown_with_the_nearest() {
    let error = JobFile::parse("name = \"x\"\nrun = \"y\"\n[resorces]\ncpus = 1").unwrap_err();
    let want = [
        "job.toml has no key `resorces`",
        " --> job.toml:3:2",
        "  |",
        "3 | [resorces]",
        "  |  ^^^^^^^^ did you mean `resources`?",
    ];
    assert_eq!(error.to_string(), want.join("\n"));
    assert!(error.told("train.toml").contains("--> train.toml:3:2"));
}

/// Files and what is said of them: `mistakes.txt` says how it is to be read.
#[test]
fn every_mistake_is_told_with_its_place_and_its_fix() {
    let mut lines = include_str!("mistakes.txt").lines().filter(|line| !line.starts_with('#'));
    let (mut count, mut other) = (0, Vec::new());
    while let Some(line) = lines.by_ref().find(|line| !line.is_empty()) {
        let text = line.replace('⏎', "\n");
        let text = match text.strip_prefix("f ") {
            Some(rest) => trains(rest),
            None => text.strip_prefix("+ ").map_or(text.clone(), more),
        };
        let want: Vec<&str> = lines.by_ref().map_while(|line| line.strip_prefix("    ")).collect();
        let said = mistakes(&text);
        if said != want {
            other.push(format!("{line}\n    {}", said.join("\n    ")));
        }
        count += 1;
    }
    assert!(other.is_empty(), "\n{}\n", other.join("\n\n"));
    assert!(count > 100, "{count}");
}

#[test]
fn what_is_not_toml_is_pointed_at() {
    assert_eq!(
        mistake("name = \"x\"\nname = \"y\""),
        "2:1 this key stands twice | remove one of them"
    );
    let unquoted = mistake("name = hello\nrun = \"x\"");
    assert!(unquoted.starts_with("1:8 job.toml is not TOML: "), "{unquoted}");
    assert!(unquoted.ends_with("| put the value in quotes"), "{unquoted}");
    for text in ["name", "[run", "name = \"x", "= 3", "[a]\n]", "x = [1,", "\u{0}", "a = \"\\q\""] {
        assert!(mistake(text).contains("not TOML"), "{text}");
    }
}

#[test]
fn all_mistakes_are_told_at_once_in_the_order_of_the_file() {
    let text =
        "nmae = \"x\"\nrun = 3\npriority = 300\n[resources]\ncpus = 0\nmemory = \"x\"\n[evn]\n";
    let all = mistakes(text);
    let lines: Vec<&str> = all.iter().map(|one| one.split(' ').next().unwrap()).collect();
    assert_eq!(lines, ["1:1", "1:1", "2:7", "3:12", "5:8", "6:10", "7:2"], "{all:#?}");
    let shown = JobFile::parse(text).unwrap_err().to_string();
    assert_eq!(shown.matches("\n\nerror: ").count(), 6);
}

#[test]
fn parameters_are_filled_in_and_overridden() {
    let text = "name = \"x\"\nrun = \"go {lr} {{lr}} ${lr}\"\n[params]\nlr = 0.1\nhex = 0x10\non = true\n\
                [env]\nA = \"{hex} {on}\"\n[output]\nmodel = \"out-{lr}/\"\n[checkpoint]\ndir = \"c-{lr}\"";
    let plain = spec(text);
    assert_eq!(plain.groups[0].argv[2], "go 0.1 {lr} ${lr}");
    assert_eq!(plain.env["A"], "16 true");
    let set = BTreeMap::from([("lr".to_owned(), "0.2".to_owned())]);
    let given = Given { set, ..given() };
    let other = parse(text).settle(&given, &Shelf).unwrap();
    assert_eq!(other.groups[0].argv[2], "go 0.2 {lr} ${lr}");
    assert_eq!(other.outputs[&name("model")].path, "out-0.2/");
    assert_eq!(other.checkpoint.unwrap().path, "c-0.2");
    assert_eq!(other.params[&name("lr")], "0.2");
    assert_eq!(parse(text).params()[&name("lr")], "0.1");
}

#[test]
fn a_parameter_that_is_not_declared_names_the_nearest() {
    let set = |key: &str, value: &str, text: &str| {
        let set = BTreeMap::from([(key.to_owned(), value.to_owned())]);
        parse(text).settle(&Given { set, ..given() }, &Shelf).unwrap_err()
    };
    let text = more("[params]\nlr = 1\nbatch = 2\n[output]\nmodel = \"{lr}/\"");
    let error = set("btach", "3", &text);
    assert_eq!(error.to_string(), "job.toml has no parameter `btach`");
    assert_eq!(error.fix(), "did you mean `batch`?");
    assert_eq!(set("epochs", "3", &text).fix(), "there are batch, lr");
    assert_eq!(set("epochs", "3", &more("")).fix(), "write it into [params] first");
    assert!(matches!(set("lr", "\0", &text), SettleError::Value { .. }));
    // What breaks the file is pointed at in the file.
    let error = set("lr", "../x", &text);
    assert!(error.to_string().contains("--> job.toml:7:9"), "{error}");

    let hole =
        |hole: &str| mistake(&format!("name = \"x\"\nrun = \"go {hole} on\"\n[params]\nlr = 1"));
    assert_eq!(hole("{rl}"), "2:11 there is no parameter `rl` | did you mean `{lr}`?");
    assert_eq!(
        hole("{index}"),
        "2:11 there is no parameter `index` | the number of a task is in MESH_TASK_INDEX"
    );
    assert_eq!(
        hole("{print}"),
        "2:11 there is no parameter `print` | write it into [params], or `{{print}}` for the braces themselves"
    );
}

#[test]
fn a_parameter_cannot_blow_a_file_up() {
    let long = "x".repeat(1000);
    let text = format!("name = \"x\"\nrun = \"{}\"\n[params]\na = \"{long}\"", "{a}".repeat(1000));
    assert!(mistake(&text).starts_with("2:7 the job's texts come to more than 16 KiB"));
    let words = "\"{a}\",".repeat(1000);
    let text = format!("name = \"x\"\nrun = [{words}]\n[params]\na = \"{long}\"");
    assert!(mistake(&text).contains("the job's texts come to more than 16 KiB"));
    // Each fits, together they do not.
    let lines: String = (0..60).map(|n| format!("a{n} = \"{}\"\n", "x".repeat(300))).collect();
    let error = parse(&more(&format!("[params]\n{lines}"))).settle(&given(), &Shelf).unwrap_err();
    assert!(matches!(error, SettleError::TooLarge { bytes } if bytes > 18_000), "{error}");
    assert_eq!(error.to_string(), "the job takes 18 KiB, and 16 KiB is the most");
}

#[test]
fn what_is_not_there_is_pointed_at() {
    let text = more("after = [\"missing\"]\n[data]\ntrain = \"missing@3\"\ntest = \"mnist\"");
    let SettleError::File(error) = parse(&text).settle(&given(), &Shelf).unwrap_err() else {
        panic!()
    };
    let want = [
        "there is no job `missing`",
        " --> job.toml:3:10",
        "  |",
        "3 | after = [\"missing\"]",
        "  |          ^^^^^^^^^",
        "",
        "error: there is no dataset `missing@3`",
        " --> job.toml:5:9",
        "  |",
        "5 | train = \"missing@3\"",
        "  |         ^^^^^^^^^^^ did you mean `mnist`?",
    ];
    assert_eq!(error.to_string(), want.join("\n"));
}

#[test]
fn code_has_to_be_pushed_first() {
    let text = "name = \"x\"\n[run]\ncommand = \"y\"\ncode = \"./src\"";
    let file = parse(text);
    assert_eq!((file.name().as_str(), file.code()), ("x", Some("./src")));
    assert_eq!(file.settle(&Given::default(), &Shelf).unwrap_err(), SettleError::Code);
    assert_eq!(spec(text).code, Some(VersionId([5; 16])));
    // Who has no code in the file is given none.
    assert_eq!(spec(&more("")).code, None);
}

#[test]
fn a_federated_job_has_one_group_for_each_party() {
    let spec = spec(
        r#"
        name = "mnist"
        kind = "federated"
        [run]
        command = ["python", "train.py", "{lr}"]
        image = "pushed"
        code = "."
        [params]
        lr = 0.1
        [resources]
        cpus = 2
        [data]
        train = "each/xray:clean"
        test = "lab/mnist"
        [federated]
        parties = ["clinic-a", "lab"]
        rounds = 20
        strategy = "fedbuff"
        min_parties = 1
        deadline = "90s"
        aggregators = ["lab", "a"]
        wire = "int8"
        select = "tiers"
        select_count = 2
        tiers = 3
        start = "mnist-mlp@3"
        model = "better"
        [federated.fedbuff]
        buffer = 2
        rate = 0.5
        max_staleness = 3
        [privacy]
        epsilon = 8
        noise = 1.5
        where = "aggregator"
        "#,
    );
    let groups: Vec<&str> = spec.groups.iter().map(|group| group.name.as_str()).collect();
    assert_eq!(groups, ["clinic-a", "lab"]);
    for group in &spec.groups {
        assert_eq!((group.count, group.party.as_ref()), (1, Some(&group.name)));
        assert_eq!(group.argv, ["python", "train.py", "0.1"]);
        assert!(matches!(group.image, Some(Image::Pushed { .. })));
        assert_eq!(group.resources.cpu_milli, Some(Range::just(2000)));
    }
    let train = &spec.data[&name("train")];
    assert_eq!(train.what, Source::Each("xray:clean".into()));
    assert_eq!(train.shown.as_deref(), Some("each/xray:clean"));
    assert_eq!(spec.data[&name("test")].what, Source::Version(VersionId([7; 16])));
    assert_eq!((spec.code, spec.gang), (Some(VersionId([5; 16])), false));
    assert_eq!(spec.retry.attempts, 3);
    let Some(Training::Federated(federated)) = &spec.training else { panic!("{spec:?}") };
    let strategy = Rule::FedBuff { buffer: 2, rate: real(0.5), max_staleness: 3 };
    assert_eq!((federated.rounds, &federated.strategy), (20, &strategy));
    assert_eq!((federated.min_parties, federated.deadline_ms), (1, Some(90_000)));
    assert_eq!(federated.aggregators, [name("lab"), name("a")]);
    assert_eq!(
        (federated.wire, &federated.select),
        (Wire::Int8, &Select::Tiers { count: 2, tiers: 3 })
    );
    assert_eq!((federated.start, federated.model.as_str()), (Some(VersionId([7; 16])), "better"));
    let privacy = federated.privacy.as_ref().unwrap();
    assert_eq!((privacy.epsilon, privacy.delta), (real(8.0), real(1e-5)));
    assert_eq!((privacy.noise, privacy.clip), (real(1.5), real(1.0)));
    assert_eq!(privacy.at, NoiseAt::Aggregator);
    assert_eq!(spec.flaw(), None);
}

#[test]
fn each_is_every_party_that_has_a_node() {
    let text = "name = \"x\"\nkind = \"federated\"\nrun = \"true\"\n\
                [federated]\nparties = \"each\"\nrounds = 1\n[privacy]\nepsilon = 1";
    let spec = spec(text);
    let groups: Vec<&str> = spec.groups.iter().map(|group| group.name.as_str()).collect();
    assert_eq!(groups, ["a", "b", "clinic-a", "lab"]);
    let federated = federated(text);
    assert_eq!(federated.strategy, Rule::FedAvg { rate: real(1.0) });
    assert_eq!((federated.min_parties, federated.deadline_ms), (2, None));
    assert_eq!((federated.aggregators, federated.model), (vec![name("lab")], name("x")));
    assert_eq!((federated.select, federated.wire), (Select::All, Wire::F32));
    assert_eq!(federated.privacy.map(|privacy| privacy.at), Some(NoiseAt::Party));
    assert_eq!(parse(text).participants(&[name("b")]), Ok(vec![name("b")]));
    assert_eq!(parse(&more("")).participants(&[name("b")]), Ok(Vec::new()));
    assert_eq!(super::super::spec::MAX_GROUPS, super::super::training::MAX_PARTICIPANTS);
}

#[test]
fn every_strategy_has_defaults() {
    let adaptive = super::super::training::Adaptive {
        rate: real(0.01),
        beta1: real(0.9),
        beta2: real(0.99),
        tau: real(0.001),
    };
    let cases = [
        ("fedavg", Rule::FedAvg { rate: real(1.0) }),
        ("fedprox", Rule::FedProx { mu: real(0.01) }),
        ("fedadam", Rule::FedAdam(adaptive.clone())),
        ("fedyogi", Rule::FedYogi(adaptive.clone())),
        ("fedadagrad", Rule::FedAdagrad(adaptive)),
        // No more than there are parties.
        ("fedbuff", Rule::FedBuff { buffer: 2, rate: real(1.0), max_staleness: 8 }),
        ("diloco", Rule::DiLoCo { rate: real(0.7), momentum: real(0.9) }),
        ("median", Rule::Median),
        ("trimmed-mean", Rule::TrimmedMean { trim: real(0.2) }),
    ];
    for (word, strategy) in cases {
        let text = trains(&format!("rounds = 1\nstrategy = \"{word}\""));
        assert_eq!(federated(&text).strategy, strategy, "{word}");
    }
    let few = trains("rounds = 1\nselect = \"random\"\nselect_count = 1");
    assert_eq!(federated(&few).select, Select::Random { count: 1 });
    assert_eq!(federated(&few).min_parties, 1);
}

#[test]
fn who_is_not_there_cannot_train() {
    let text = "name = \"x\"\nkind = \"federated\"\nrun = \"true\"\n[federated]\n\
                parties = [\"clinic-b\", \"lab\"]\naggregators = [\"nobody-at-all\"]\nrounds = 1\n\
                start = \"missing\"\n[data]\ntrain = \"each/missing\"";
    let SettleError::File(error) = parse(text).settle(&given(), &Shelf).unwrap_err() else {
        panic!()
    };
    let said: Vec<String> = error
        .mistakes
        .iter()
        .map(|mistake| {
            let fix = mistake.fix.as_deref().unwrap_or("-");
            format!("{}:{} {} | {fix}", mistake.line, mistake.column, mistake.message)
        })
        .collect();
    assert_eq!(
        said,
        [
            "5:12 there is no party `clinic-b` with a node | did you mean `clinic-a`?",
            "6:16 there is no party `nobody-at-all` with a node | mesh party ls shows them all",
            "8:9 there is no dataset `missing` | did you mean `mnist`?",
            "10:9 there is no dataset `missing` | did you mean `mnist`?",
        ]
    );
    assert!(parse(text).participants(&[name("lab")]).is_err());
    // Who does not take part need not have the data; whether the others do is for their nodes to say.
    let elsewhere = spec(&trains("rounds = 1\n[data]\ntrain = \"each/missing@2\""));
    assert_eq!(elsewhere.data[&name("train")].what, Source::Each("missing@2".into()));
    let all = trains("rounds = 1\nmin_parties = 3").replace("[\"a\", \"b\"]", "\"each\"");
    assert_eq!(federated(&all).min_parties, 3);
    let more = all.replace("min_parties = 3", "min_parties = 5");
    let error = parse(&more).settle(&given(), &Shelf).unwrap_err();
    assert!(error.to_string().contains("waits for 5, and there are 4 parties"), "{error}");
}

#[test]
fn the_built_in_trainer_is_the_nodes_own_program() {
    let top = "name = \"x\"\nkind = \"federated\"\n[federated]\nparties = [\"a\"]\nrounds = 1\n";
    for model in ["logistic", "mlp", "cnn"] {
        let spec = spec(&format!("{top}[run]\ntrainer = \"{model}\"\n[params]\nlr = 0.1"));
        assert_eq!(spec.groups[0].argv, [OWN_BINARY, "train", model]);
        assert_eq!(spec.params[&name("lr")], "0.1");
    }
    let often = spec(&format!("{top}[run]\ntrainer = \"mlp\"\n[retry]\nattempts = 1"));
    assert_eq!(often.retry.attempts, 1);
    assert!(!parse(&more("")).is_federated());
}

#[test]
fn secrets_are_asked_for_sealed_and_never_shown() {
    let text = more("[secrets]\nA = \"env:HERE\"\nB = \"file:token\"\nC = \"hunter2\"");
    let file = parse(&text);
    let wanted: Vec<_> = file.secrets_wanted().collect();
    let (a, b) = (SecretFrom::Env("HERE".into()), SecretFrom::File("token".into()));
    assert_eq!(wanted, [("A", &a), ("B", &b)]);
    assert!(!format!("{file:?}").contains("hunter2"));
    let secrets = [("A", "sesame"), ("B", "friend")];
    let secrets = secrets.map(|(key, value)| (key.to_owned(), SecretValue::new(value)));
    let given = Given { secrets: secrets.into(), ..given() };
    assert!(!format!("{given:?}").contains("sesame"));
    let spec = file.clone().settle(&given, &Shelf).unwrap();
    let opened = |key: &str| spec.secrets[key].0.iter().rev().copied().collect::<Vec<u8>>();
    assert_eq!((opened("A"), opened("C")), (b"sesame".to_vec(), b"hunter2".to_vec()));

    let error = file.clone().settle(&Given::default(), &Shelf).unwrap_err();
    assert_eq!(error.to_string(), "the secret `A` cannot be used: it was not given");
    for bad in ["", "a\0b", &"x".repeat(MAX_SECRET_BYTES + 1)] {
        let mut given = given.clone();
        given.secrets.insert("A".into(), SecretValue::new(bad));
        let error = file.clone().settle(&given, &Shelf).unwrap_err();
        assert!(matches!(error, SettleError::Secret { .. }), "{error}");
    }
    let error = parse(&more("[secrets]\nUNSEALABLE = \"hunter2\"")).settle(&given, &Shelf);
    assert!(error.unwrap_err().to_string().ends_with("this node has no key to seal with"));
}

#[test]
fn no_mistake_near_a_secret_shows_it() {
    let wrong = [
        "[secrets]\nA = \"hunter2\" \"",
        "[secrets]\n1-A = \"hunter2\"",
        "[secrets]\nA = [\"hunter2\"]",
        "[secrets]\nA = { b = \"hunter2\" }",
        "[secrets]\nA = \"hunter2\n",
        "[secrets]\nA = \"env:hunter2 \"",
        "[secrets]\nA = \"file:\"\nMESH_B = \"hunter2\"",
        "[secrets]\nA = \"\\u0000hunter2\"",
        "[secrets]\nA = \"\"\"\nhunter2\n\\q\"\"\"",
        "[secret]\nA = \"hunter2\"",
        "secrets = \"hunter2\"",
        "secrets = [\"hunter2\"]",
        "secrets = { A = \"hunter2\", A = \"hunter2\" }",
        "secrets = { A = \"hunter2\"",
        "secrets.A = \"hunter2\"\nsecrets.A = \"hunter2\"",
        "[env]\nA = \"x\"\n[secrets]\nA = \"hunter2\"",
    ];
    for text in wrong {
        let error = JobFile::parse(&more(text)).unwrap_err();
        assert!(!error.to_string().contains("hunter"), "{error}");
        assert!(!format!("{error:?}").contains("hunter"), "{error}");
    }
}

#[test]
fn files_that_are_too_much_are_refused() {
    let large = format!("name = \"x\"\n# {}", "x".repeat(MAX_FILE_BYTES));
    assert!(mistake(&large).contains("larger than 1 MiB"));
    let many = "[[task]]\n".repeat(5000);
    assert!(mistake(&many).contains("more brackets and dots"));
    let keys: String = (0..20_000).map(|n| format!("resourcex{n} = 1\n")).collect();
    let error = JobFile::parse(&keys).unwrap_err();
    assert_eq!(error.mistakes.len(), MAX_MISTAKES);
    let entries: String = (0..65).map(|n| format!("A{n} = 1\n")).collect();
    assert!(mistake(&more(&format!("[env]\n{entries}"))).ends_with("| 64 are the most"));
    let list = "\"a\",".repeat(65);
    assert!(mistake(&more(&format!("after = [{list}]"))).ends_with("| 64 are the most"));
    let holes = "\"{nothing}\",".repeat(50_000);
    let error = JobFile::parse(&format!("name = \"x\"\nrun = [{holes}]")).unwrap_err();
    assert_eq!(error.mistakes.len(), MAX_MISTAKES);
    let braces = "{".repeat(MAX_FILE_BYTES - 100);
    assert!(JobFile::parse(&more(&format!("[env]\nA = \"{braces}\""))).is_err());
}

#[test]
fn nesting_does_not_reach_the_end_of_the_stack() {
    let deep = [
        "[".repeat(200_000),
        format!("x = {}", "[".repeat(200_000)),
        format!("x = {}", "{a=".repeat(200_000)),
        format!("{} = 1", "a.".repeat(200_000)),
        format!("[{}b]", "a.".repeat(200_000)),
        // As deep as the parser lets it be, in both ways at once.
        format!("x = {}1{}", format!("{{{}b=", "a.".repeat(70)).repeat(79), "}".repeat(79)),
        // As deep as is let through here.
        format!("x = {}1{}", format!("{{{}b=", "a.".repeat(60)).repeat(16), "}".repeat(16)),
    ];
    // Less than any thread has.
    let small = std::thread::Builder::new().stack_size(1 << 20);
    let run = move || deep.iter().all(|text| JobFile::parse(text).is_err());
    assert!(small.spawn(run).unwrap().join().unwrap());
}

/// Lines that are right, for sections that are.
fn any_file() -> impl Strategy<Value = String> {
    let pick = |choices: &'static [&'static str]| proptest::sample::select(choices);
    let top = (
        pick(&["", "class = \"trial\"\n", "class = \"best-effort\"\n"]),
        pick(&["", "priority = 0\n", "priority = 100\n"]),
        pick(&["", "after = []\n", "after = [\"prepare\", \"b\"]\n"]),
        pick(&["", "array = 1\n", "array = 1024\n", "gang.workers = 3\n", "place.each = true\n"]),
        pick(&[
            "run = \"echo {lr}\"\n",
            "run = [\"a\", \"{lr}\", \"{{b}}\"]\n",
            "run = { command = [\"a\"], image = \"python:3.12\", code = \"..\" }\n",
            "run.image = \"pushed\"\nrun.command = \"x ${y} {z,w}\"\n",
        ]),
    );
    let resources = (
        pick(&["", "cpus = 1\n", "cpus = 0.001\n", "cpus = \"0.5..\"\n", "cpus = \"1..65536\"\n"]),
        pick(&["", "memory = \"6MiB\"\n", "memory = \"1GB..2TB\"\n", "memory = \"1GiB..\"\n"]),
        pick(&[
            "",
            "gpus = 0\n",
            "gpus = 16\n",
            "gpus = \"1..\"\n",
            "gpus = \"8GB..16GB:2\"\n",
            "gpus = \"mig-1c.2g.10gb+me\"\n",
            "gpus = [\"A100\", \"rtx 4090\"]\n",
            "gpus = { count = \"2..3\", model = \"H100\", memory = \"1GiB..\" }\n",
        ]),
        pick(&["", "shm = \"1MiB\"\n", "disk = \"10TB\"\n"]),
    );
    let rest = (
        pick(&["", "[data]\ntrain = \"mnist\"\ntest = \"lab/mnist:v1\"\n"]),
        pick(&[
            "",
            "[checkpoint]\ndir = \"c/{lr}\"\n",
            "[checkpoint]\ndir = \"c\"\nevery = \"1s\"\n",
        ]),
        pick(&[
            "",
            "[preempt]\ngrace = \"0s\"\n[retry]\nattempts = 100\non = [\"time\", \"signal:64\"]\n",
        ]),
        pick(&["", "[output]\nmodel = \"out\"\nlogs = \"logs/{lr}.txt\"\n"]),
        pick(&["", "[env]\nA = \"{lr}\"\nB = 0o17\n[secrets]\nC = \"hunter2\"\n"]),
        pick(&["", "[limits]\ntime = \"365d\"\n[ports]\nhttp = \"auto\"\n"]),
    );
    (top, resources, rest).prop_map(|(top, resources, rest)| {
        let top = [top.0, top.1, top.2, top.3, top.4].concat();
        let resources = [resources.0, resources.1, resources.2, resources.3].concat();
        let rest = [rest.0, rest.1, rest.2, rest.3, rest.4, rest.5].concat();
        format!("name = \"x\"\n{top}[resources]\n{resources}[params]\nlr = 0.1\n{rest}")
    })
}

/// A file to break: one of the templates, or any other that is right.
fn any_sound() -> impl Strategy<Value = String> {
    let templates = (0..TEMPLATES.len()).prop_map(|n| TEMPLATES[n].text.to_owned());
    prop_oneof![templates, any_file()]
}

/// What may be put into a file to break it.
fn any_bit() -> impl Strategy<Value = String> {
    let bits = [
        "[",
        "]",
        "[[",
        "{",
        "}",
        "\"",
        "'",
        "\"\"\"",
        "=",
        ".",
        "..",
        ",",
        "\n",
        "\r\n",
        "#",
        "\\",
        "\\u0000",
        "-1",
        "99999999999999999999",
        "1e400",
        "nan",
        "é",
        "\u{202e}",
        "\t",
        "[task]\n",
        "[[task]]\n",
        "{lr}",
        "{nope}",
        "name = 1\n",
        "[secrets]\n",
        "true",
        "1979-05-27",
        "0x",
        "\u{feff}",
        "GiB",
        "run",
    ];
    prop_oneof![
        proptest::sample::select(bits.map(str::to_owned).to_vec()),
        any::<char>().prop_map(String::from),
        Just(String::new()),
    ]
}

/// Puts bits in place of what stands at some places, on whole characters.
fn broken(text: &str, edits: &[(proptest::sample::Index, usize, String)]) -> String {
    let mut letters: Vec<char> = text.chars().collect();
    for (at, length, bit) in edits {
        let at = at.index(letters.len() + 1);
        let end = (at + length).min(letters.len());
        letters.splice(at..end, bit.chars());
    }
    letters.into_iter().collect()
}

/// Parses, settles and shows whatever comes of it.
fn exercise(text: &str) {
    match JobFile::parse(text) {
        Ok(file) => {
            let _ = format!("{file:?}");
            match file.settle(&given(), &Shelf) {
                Ok(spec) => assert_eq!(spec.flaw(), None, "{text}"),
                Err(error) => assert!(!error.to_string().is_empty()),
            }
        }
        Err(error) => {
            assert!((1..=MAX_MISTAKES).contains(&error.mistakes.len()), "{text}");
            for mistake in &error.mistakes {
                assert!(!mistake.message.is_empty() && mistake.width > 0, "{mistake:?}");
                assert!(mistake.to_string().chars().all(|c| c == '\n' || !c.is_control()));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_sound_file_becomes_a_job_without_flaw(text in any_file()) {
        let file = JobFile::parse(&text);
        prop_assert!(file.is_ok(), "{}\n{}", text, file.unwrap_err());
        let spec = file.unwrap().settle(&given(), &Shelf);
        prop_assert!(spec.is_ok(), "{}\n{}", text, spec.unwrap_err());
        prop_assert_eq!(spec.unwrap().flaw(), None, "{}", text);
    }

    #[test]
    fn any_text_is_read_without_harm(text in ".{0,200}") {
        exercise(&text);
    }

    #[test]
    fn any_bytes_are_read_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        exercise(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn a_broken_file_is_read_without_harm(
        text in any_sound(),
        edits in proptest::collection::vec((any::<proptest::sample::Index>(), 0usize..12, any_bit()), 1..6),
    ) {
        exercise(&broken(&text, &edits));
    }

    #[test]
    fn a_file_that_is_broken_elsewhere_keeps_its_secret(
        before in any_file(),
        edits in proptest::collection::vec((any::<proptest::sample::Index>(), 0usize..12, any_bit()), 1..4),
        bit in any_bit(),
    ) {
        let before = broken(&before.replace("hunter2", "env:C"), &edits);
        let text = format!("{before}\n[secrets]\nTOKEN = \"swordfish\" {bit}\n");
        // Within a text of several lines it would be no secret.
        prop_assume!(!text.contains("\"\"\"") && !text.contains("'''"));
        if let Err(error) = JobFile::parse(&text) {
            prop_assert!(!error.to_string().contains("swordfish"), "{}", error);
        }
    }
}
