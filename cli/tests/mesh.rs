//! The binary, as a person or a script meets it.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mesh"));
    command.env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE").stdin(Stdio::null());
    command
}

fn mesh(line: &str) -> Output {
    command().args(line.split_whitespace()).output().expect("mesh starts")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("mesh writes UTF-8")
}

/// The three lines of an error, without their labels.
fn error_of(output: &Output) -> [String; 3] {
    let lines: Vec<&str> = text(&output.stderr).lines().collect();
    let [error, cause, hint] = lines[..] else { panic!("not three lines: {lines:?}") };
    [(error, "error: "), (cause, "cause: "), (hint, "try:   ")]
        .map(|(line, label)| line.strip_prefix(label).expect("each line has its label").to_owned())
}

#[test]
fn version_says_which_release_and_level_this_is() {
    let output = mesh("--version");
    let version = env!("CARGO_PKG_VERSION");
    assert!(text(&output.stdout).starts_with(&format!("mesh {version} (level ")));
    assert!(output.status.success());

    let item: Value = serde_json::from_slice(&mesh("--version --json").stdout).unwrap();
    assert_eq!(item["item"]["version"], version);
    assert!(item["item"]["level"].is_u64());
}

#[test]
fn help_shows_examples_and_only_commands_that_exist() {
    for line in ["--help", "help", "-h"] {
        let output = mesh(line);
        let help = text(&output.stdout);
        assert!(output.status.success() && output.stderr.is_empty());
        assert!(help.contains("Examples:") && help.contains("completions"), "{help}");
        assert!(help.contains("\n  submit") && !help.contains("\n  train"), "{help}");
        // Every code that a command of this version exits with.
        for code in ["0 done", "1 refused", "2 not", "3 no", "4 no", "5 other", "124 out", "130 "] {
            assert!(help.contains(code), "{code}: {help}");
        }
    }
}

#[test]
fn the_bare_command_prints_help_and_is_a_usage_error() {
    let output = mesh("");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("Usage: mesh"));
    assert!(output.stdout.is_empty());
}

#[test]
fn an_unknown_command_is_explained_with_the_nearest_known_one() {
    let output = mesh("completion bash");
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    let [error, cause, hint] = error_of(&output);
    assert_eq!(error, "there is no command \"completion\"");
    assert!(cause.contains("init, join, up") && cause.ends_with("completions, help"), "{cause}");
    assert_eq!(hint, "mesh completions");
    assert_eq!(error_of(&mesh("zzz"))[2], "mesh --help");
}

#[test]
fn a_mistake_is_json_where_json_was_asked_for() {
    for line in ["--json", "--json data", "exec --json", "completions --json", "--jsom --json"] {
        let output = mesh(line);
        assert_eq!(output.status.code(), Some(2), "{line}");
        assert!(output.stderr.is_empty(), "{line}");
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&answer["schema"], &answer["error"]["code"]), (&json!(1), &json!("usage")));
        for field in ["message", "cause", "try"] {
            assert!(!answer["error"][field].as_str().unwrap().is_empty(), "{line}: {field}");
        }
    }
    let answer: Value = serde_json::from_slice(&mesh("data --json").stdout).unwrap();
    assert_eq!(answer["error"]["try"], "mesh data --help");
}

#[test]
fn every_kind_of_usage_mistake_has_three_lines() {
    for (line, error, hint) in [
        ("--jsom", "there is no option \"--jsom\"", "--json"),
        ("completions", "<SHELL> is missing", "mesh completions --help"),
        ("completions bahs", "\"bahs\" does not fit <SHELL>", "bash"),
        ("completions bash zsh", "unexpected \"zsh\"", "mesh completions --help"),
        ("join", "<TICKET> is missing", "mesh join --help"),
        ("join SWMTKN-1-x", "\"SWMTKN-1-x\" does not fit <TICKET>", "mesh join --help"),
        ("ticket new --ttl 5", "\"5\" does not fit --ttl", "mesh ticket new --help"),
        ("ticket new --ttl -1h", "\"-1h\" does not fit --ttl", "mesh ticket new --help"),
        ("leave --timeout -5s", "\"-5s\" does not fit --timeout", "mesh leave --help"),
        (
            "ticket new --worker --new-party",
            "--worker does not go with --new-party",
            "mesh ticket new --help",
        ),
        ("ticket new --ttl 0s", "no ticket is good for 0ms", "mesh ticket new --ttl 24h"),
        ("ticket new --ttl 36501d", "no ticket is good for 36501d", "mesh ticket new --ttl 24h"),
        ("ticket new --uses 10001", "\"10001\" does not fit --uses", "mesh ticket new --help"),
        ("party key --remove", "--out is missing", "mesh party key --help"),
        ("init --name GPU", "\"GPU\" does not fit --name", "mesh init --help"),
        (
            "init --no-vote",
            "the first node of a mesh has to vote",
            "mesh init; once others vote, votes = false in its config.toml takes its vote away",
        ),
        ("node label gpu-1", "<LABEL>... is missing", "mesh node label --help"),
        ("node show ../x", "\"../x\" does not fit <NODE>", "mesh node show --help"),
        (
            "--dir data ticket revoke ../x",
            "\"../x\" does not fit <ID>",
            "mesh ticket revoke --help",
        ),
        ("recover choose junk", "--out is missing", "mesh recover choose --help"),
        ("node shwo gpu-1", "there is no command \"shwo\"", "mesh node show"),
        (
            "--json=yes",
            "unexpected value 'yes' for '--json' found; no more were expected",
            "mesh --help",
        ),
    ] {
        let output = mesh(line);
        assert_eq!(output.status.code(), Some(2), "{line}");
        let said = error_of(&output);
        assert_eq!([said[0].as_str(), said[2].as_str()], [error, hint], "{line}");
    }
}

#[test]
fn a_word_that_is_empty_is_a_mistake_like_any_other() {
    let output = command().args(["ticket", "revoke", ""]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let [error, cause, hint] = error_of(&output);
    assert_eq!(error, "\"\" does not fit <ID>");
    assert!(cause.contains("mesh ticket ls"), "{cause}");
    assert_eq!(hint, "mesh ticket revoke --help");
    let output = command().args(["data", "pull", "mnist", ""]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let [error, cause, hint] = error_of(&output);
    assert_eq!(error, "\"\" does not fit [DIR]");
    assert!(cause.contains("directory is wanted, and this one is empty"), "{cause}");
    assert_eq!(hint, "mesh data pull --help");
}

#[test]
fn a_number_out_of_range_is_told_the_range() {
    let output = mesh("data push x --copies 0");
    assert_eq!(output.status.code(), Some(2));
    let [error, cause, _] = error_of(&output);
    assert_eq!(error, "\"0\" does not fit --copies");
    assert!(cause.contains("1..=16"), "{cause}");
}

#[test]
fn a_time_below_nothing_is_told_to_be_positive_with_an_example() {
    for line in ["ticket new --ttl -1h", "ticket new --ttl=-1h"] {
        let output = mesh(line);
        assert_eq!(output.status.code(), Some(2), "{line}");
        let [_, cause, _] = error_of(&output);
        assert!(cause.contains("positive") && cause.contains("24h"), "{line}: {cause}");
    }
}

#[test]
fn what_was_never_a_survey_is_not_called_damaged() {
    let temp = tempfile::tempdir().unwrap();
    let [junk, order] = ["junk", "order"].map(|name| temp.path().join(name));
    std::fs::write(&junk, "nothing of ours\n").unwrap();
    let words = ["recover", "choose"].map(Path::new);
    let words = words.into_iter().chain([junk.as_path(), Path::new("--out"), order.as_path()]);
    let output = command().args(words).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let [_, cause, hint] = error_of(&output);
    assert!(cause.contains("is not a survey"), "{cause}");
    assert!(hint.starts_with("mesh recover --help"), "{hint}");
    assert!(!order.exists());
}

#[test]
fn completions_are_made_for_each_shell() {
    for (shell, sign) in
        [("bash", "complete -F _mesh"), ("zsh", "#compdef mesh"), ("fish", "complete -c mesh")]
    {
        let output = mesh(&format!("completions {shell}"));
        assert!(output.status.success());
        assert!(text(&output.stdout).contains(sign), "{shell}");
    }
    let answer: Value = serde_json::from_slice(&mesh("completions fish --json").stdout).unwrap();
    assert_eq!(answer["item"]["shell"], "fish");
}

#[test]
fn colour_is_used_only_where_it_is_wanted() {
    let forced = command().arg("--help").env("CLICOLOR_FORCE", "1").output().unwrap();
    assert!(forced.stdout.contains(&0x1b));
    let none = command().arg("--help").env("CLICOLOR_FORCE", "1").env("NO_COLOR", "1").output();
    assert!(!none.unwrap().stdout.contains(&0x1b));
    assert!(!mesh("--help").stdout.contains(&0x1b));
}

#[test]
fn a_reader_that_leaves_early_is_no_failure() {
    for line in ["--help", "--version", "completions zsh", "--json"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let child = command().args(line.split(' ')).stdout(writer).stderr(Stdio::piped()).spawn();
        let output = child.unwrap().wait_with_output().unwrap();
        assert!(output.stderr.is_empty(), "{line}: {}", text(&output.stderr));
        assert_eq!(output.status.code(), Some(if line == "--json" { 2 } else { 0 }), "{line}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_reported_instead_of_ignored() {
    for line in ["--help", "completions bash"] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = command().args(line.split(' ')).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{line}");
        assert_eq!(error_of(&output)[0], "the answer could not be written");
    }
}

#[test]
fn the_built_in_trainer_needs_no_mesh() {
    let dir = tempfile::tempdir().unwrap();
    let text_of = |n: usize| format!("{},{},{}\n", n % 2, 1 - n % 2, n % 2);
    let lines: String = (0..100).map(text_of).collect();
    std::fs::write(dir.path().join("data.csv"), lines).unwrap();
    let (data, model) = (dir.path().display(), dir.path().join("m.safetensors"));
    let model = model.display();
    let output = mesh(&format!("train logistic --data {data} --epochs 2 --out {model} --json"));
    assert!(output.status.success(), "{output:?}");
    let lines: Vec<&str> = text(&output.stdout).lines().collect();
    let [_, last] = lines[..] else { panic!("one line an epoch: {lines:?}") };
    let last: Value = serde_json::from_str(last).unwrap();
    assert_eq!((&last["item"]["accuracy"], &last["item"]["examples"]), (&json!(1.0), &json!(90)));
    let output = mesh(&format!("train logistic --data {data} --evaluate {model}"));
    assert!(text(&output.stdout).starts_with("accuracy 1.0000"), "{output:?}");
    assert!(output.status.success() && output.stderr.is_empty());

    let output = command().args(["train", "mlp"]).env_remove("MESH_SOCKET").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(error_of(&output)[0], "there is no training to take part in");
    let output = mesh("train tree --data .");
    assert_eq!((output.status.code(), &*error_of(&output)[2]), (Some(2), "mesh train --help"));
}
