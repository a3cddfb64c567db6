//! The frame that every answer with `--json` has.
//!
//! Not walked here: `request show`, `grant` and `deny`, which want a second party and pass a node's answer on as
//! it came; `up`, which has no answer; `demo`, whose lines have a test of their own.

use super::*;

/// The one object that a command answers with, after a look at its frame. Where a node was asked, the frame says how
/// fresh that node's answer is; where none was, it does not pretend to know.
fn framed(output: &Output, asked: bool, what: &str) -> Value {
    let mut said = lines(output);
    assert_eq!(said.len(), 1, "{what}: {output:?}");
    let answer = said.remove(0);
    assert_eq!(answer["schema"], 1, "{what}: {answer}");
    assert!(answer["item"].is_object() != answer["items"].is_array(), "{what}: {answer}");
    for field in ["index", "age_ms"] {
        assert_eq!(answer.get(field).is_some(), asked, "{what}: {field}: {answer}");
    }
    if asked {
        assert!(answer["index"].is_u64(), "{what}: {answer}");
        // Null is a node that has heard no leader yet.
        assert!(answer["age_ms"].is_u64() || answer["age_ms"].is_null(), "{what}: {answer}");
    }
    answer
}

#[test]
fn every_answer_says_how_fresh_it_is_unless_no_node_was_asked() {
    let (node, made) = Node::init(&["--name", "a"]);
    let made = framed(&made, true, "init")["item"].clone();
    let [ticket, ticket_id] = ["ticket", "ticket_id"].map(|field| made[field].as_str().unwrap());

    let other = Node(tempfile::tempdir().unwrap());
    let words = ["join", ticket, "--listen", "127.0.0.1:0", "--name", "b", "--json"];
    framed(&other.mesh(&words), true, "join");
    framed(&other.mesh(&["leave", "--yes", "--json"]), true, "leave");
    // Once more is no mistake, and whoever asks for something else is told why nobody answers.
    let again = other.mesh(&["leave", "--yes", "--json"]);
    assert!(again.status.success(), "{again:?}");
    assert_eq!(framed(&again, false, "leave, again")["item"]["left"], true);
    let asked = other.mesh(&["nodes"]);
    assert_eq!(asked.status.code(), Some(3), "{asked:?}");
    let said = String::from_utf8_lossy(&asked.stderr);
    assert!(said.contains("has left its mesh") && said.contains("mesh join TICKET"), "{said}");

    let temp = tempfile::tempdir().unwrap();
    let [set, key, survey, order] =
        ["set", "party.key", "a.survey", "order"].map(|name| temp.path().join(name));
    std::fs::create_dir(&set).unwrap();
    std::fs::write(set.join("one"), "1\n").unwrap();
    let run = |line: &str, asked: bool| {
        let words: Vec<&str> = line.split(' ').chain(["--json"]).collect();
        let output = node.mesh(&words);
        assert!(output.status.success(), "{line}: {output:?}");
        framed(&output, asked, line)
    };

    let push = format!("data push {} --copies 1 --no-wait", set.display());
    run(&push, true);
    std::fs::write(set.join("two"), "2\n").unwrap();
    run(&push, true);
    for line in [
        "status",
        "nodes",
        "node show a",
        "node label a zone=ber",
        "node drain a",
        "node drain a --off",
        "data ls",
        "data show set",
        "data log set",
        "data diff set@1 set@2",
        "data share set --open",
        "data unshare set",
        "data tag set clean",
        "data pin set",
        "data pin set --off",
        "data pull set --store-only",
        "data verify set",
        "data du",
        "data rm set --all --yes",
        "model ls",
        "ticket new",
        "ticket ls",
        "party ls",
        "party key",
        "request ls",
        "config",
    ] {
        run(line, true);
    }
    run(&format!("ticket revoke {ticket_id}"), true);
    run(&format!("party key --out {} --remove --yes", key.display()), true);
    run(&format!("party key --in {}", key.display()), true);
    // What it finds on this machine may be bad: that is no matter here.
    framed(&node.mesh(&["doctor", "--json"]), true, "doctor");
    let log = lines(&node.mesh(&["node", "logs", "--json"]));
    assert!(!log.is_empty() && log.iter().all(|line| line["schema"] == 1), "{log:?}");
    run("down", true);

    // From here on nobody answers.
    framed(&node.mesh(&["doctor", "--json"]), false, "doctor without a node");
    for line in
        ["down", "config", "completions bash", "service install --user --dry-run", "--version"]
    {
        run(line, false);
    }
    run(&format!("recover survey --out {}", survey.display()), false);
    run(&format!("recover choose {} --out {}", survey.display(), order.display()), false);
    run(&format!("recover sign {}", order.display()), false);
}
