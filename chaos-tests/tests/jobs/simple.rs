//! Small jobs, and what is said of those that cannot be.

use serde_json::Value;

use crate::{Ground, WAIT, code, running, text, until_gone};

#[test]
fn what_a_job_prints_is_on_stdout_wherever_it_ran() {
    let ground = Ground::new(3);
    let hello = r#"
name = "hello"
run = "echo hello from $MESH_NODE"
"#;
    let said = ground.follow(0, hello);
    let nodes = ["n0", "n1", "n2"];
    assert!(said.ok(), "{said:?}");
    assert!(nodes.iter().any(|node| said.stdout == format!("hello from {node}\n")), "{said:?}");
    for node in nodes {
        let said = ground.follow(0, &format!("{hello}[place]\nnodes = [\"{node}\"]\n"));
        assert!(said.ok(), "{said:?}");
        assert_eq!(said.stdout, format!("hello from {node}\n"));
    }

    let both = r#"
name = "both"
run = "echo one; echo two >&2; echo three"
"#;
    let id = ground.submit(1, both);
    let listed = |host: usize| -> Vec<Value> {
        ground.jobs(host).into_iter().map(|job| job["id"].clone()).collect()
    };
    for host in 0..3 {
        let job = ground.done(host, &id);
        assert_eq!(job["name"], "both", "{job}");
        assert!(job["reason"].is_null(), "{job}");
        assert_eq!(job["tasks"][0]["exit_code"], 0, "{job}");
        let said = ground.mesh(host, &["logs", &id]);
        assert!(said.ok(), "{said:?}");
        assert_eq!(said.stdout, "one\nthree\n", "as n{host} shows it");
        assert!(said.stderr.lines().any(|line| line == "two"), "{said:?}");
        assert_eq!(listed(host), listed(0), "as n{host} lists them");
        assert_eq!(listed(host).len(), 5);
    }
    assert!(ground.mesh(2, &["wait", &id]).ok());
    let said = ground.mesh(2, &["job", "show", &id, "--json"]);
    let shown: Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!(shown["item"]["id"], id.as_str());
    ground.calm();
}

#[test]
fn every_task_of_an_array_has_its_own_number() {
    let ground = Ground::new(3);
    let parts = r#"
name = "parts"
array = 4
run = "echo part $MESH_TASK_INDEX of $MESH_TASKS"
"#;
    let said = ground.follow(1, parts);
    assert!(said.ok(), "{said:?}");
    let mut lines: Vec<&str> = said.stdout.lines().collect();
    lines.sort_unstable();
    let expected: Vec<String> = (0..4).map(|n| format!("task {n} | part {n} of 4")).collect();
    assert_eq!(lines, expected);
    let job = ground.job(1, "parts").unwrap();
    let tasks = job["tasks"].as_array().unwrap();
    assert!(tasks.len() == 4 && tasks.iter().all(|task| task["state"] == "done"), "{job}");
    let id = job["id"].as_str().unwrap();
    assert_eq!(ground.printed_by(1, id, 2), "part 2 of 4\n");
    ground.calm();
}

#[test]
fn a_job_that_fails_says_how() {
    let ground = Ground::new(3);
    let seven = r#"
name = "seven"
run = "echo so far; exit 7"
"#;
    let said = ground.follow(2, seven);
    assert_eq!(code(&said), Some(1), "{said:?}");
    assert_eq!(said.stdout, "so far\n");
    assert!(said.is_report() && said.stderr.contains("exit code 7"), "{said:?}");
    let job = ground.job(2, "seven").unwrap();
    assert_eq!(job["state"], "failed", "{job}");
    assert_eq!(job["reason"], "exit code 7", "{job}");
    assert_eq!(job["tasks"][0]["exit_code"], 7, "{job}");
    let said = ground.mesh(0, &["wait", job["id"].as_str().unwrap()]);
    assert_eq!(code(&said), Some(1), "{said:?}");

    let slow = r#"
name = "slow"
run = "sleep 1000"
[limits]
time = "1s"
[preempt]
grace = "1s"
"#;
    let id = ground.submit(0, slow);
    let job = ground.until_state(1, &id, "failed");
    assert_eq!(job["reason"], "killed: time limit", "{job}");
    until_gone(&id, &job["tasks"][0]["fence"]);
    ground.calm();
}

#[test]
fn what_cannot_be_run_says_why_and_holds_nobody_up() {
    let ground = Ground::new(3);
    let typo = "name = \"typo\"\nrun = \"true\"\n[resorces]\ncpus = 1\n";
    let file = ground.file(0, typo);
    let said = ground.mesh(0, &["submit", text(&file)]);
    assert_eq!(code(&said), Some(1), "{said:?}");
    let place = format!("--> {}:3:2", file.display());
    for part in [&*place, "3 | [resorces]", "^^^^^^^^ did you mean `resources`?"] {
        assert!(said.stderr.contains(part), "{part} is not in {said:?}");
    }
    let said = ground.mesh(0, &["submit", text(&file), "--json"]);
    let answer: Value = serde_json::from_str(&said.stdout).unwrap();
    let cause = answer["error"]["cause"].as_str().unwrap();
    assert!(cause.contains("did you mean `resources`?"), "{answer}");

    let huge = "name = \"huge\"\nrun = \"true\"\n[resources]\ncpus = 4000\n";
    let file = ground.file(1, huge);
    for command in ["submit", "plan"] {
        let said = ground.mesh(1, &[command, text(&file)]);
        assert_eq!(code(&said), Some(4), "{said:?}");
        assert!(said.is_report() && said.stderr.contains("wants 4000"), "{said:?}");
    }
    let unknown = "name = \"unknown\"\nrun = \"true\"\n[data]\ntrain = \"no-such-data\"\n";
    let said = ground.follow(2, unknown);
    assert!(!said.ok() && said.stderr.contains("no-such-data"), "{said:?}");
    assert!(ground.jobs(0).is_empty(), "none of them is a job: {:?}", ground.jobs(0));

    // What nobody can tell before it is started.
    let absent = "name = \"absent\"\nrun = [\"there-is-no-such-program\"]\n";
    let next = "name = \"next\"\nrun = \"true\"\n";
    let said = ground.mesh(1, &["plan", text(&ground.file(1, next))]);
    assert!(said.ok() && said.stdout.contains("next would start now"), "{said:?}");
    let (absent, next) = (ground.submit(1, absent), ground.submit(1, next));
    let job = ground.until_state(1, &absent, "failed");
    let reason = job["reason"].as_str().unwrap();
    assert!(reason.contains("there is no program \"there-is-no-such-program\""), "{job}");
    ground.done(1, &next);
    ground.calm();
}

#[test]
fn a_job_starts_after_another_and_not_if_that_one_failed() {
    let ground = Ground::new(3);
    let first = ground.submit(0, &format!("name = \"first\"\nrun = \"{WAIT}\"\n"));
    let running = ground.until_state(1, &first, "running");
    let second = "name = \"second\"\nafter = [\"first\"]\nrun = \"echo second\"\n";
    let second = ground.submit(1, second);
    let waits = ground.job(1, &second).unwrap();
    assert_eq!(waits["state"], "waiting", "{waits}");
    assert_eq!(waits["tasks"][0]["attempt"], 0, "{waits}");
    assert!(waits["reason"].as_str().unwrap().contains("after"), "{waits}");
    ground.let_go(&running, 0);
    ground.done(1, &first);
    ground.done(1, &second);
    assert_eq!(ground.printed(1, &second), "second\n");

    let bad = ground.submit(2, &format!("name = \"bad\"\nrun = \"{WAIT}; exit 3\"\n"));
    let running = ground.until_state(2, &bad, "running");
    let barred = format!("name = \"barred\"\nafter = [\"{bad}\"]\nrun = \"echo never\"\n");
    let before = ground.submit(2, &barred);
    assert_eq!(ground.job(2, &before).unwrap()["state"], "waiting");
    ground.let_go(&running, 0);
    ground.until_state(2, &bad, "failed");
    // Whether it came before the other failed, or later.
    for id in [before, ground.submit(2, &barred)] {
        let job = ground.until_state(2, &id, "failed");
        assert!(job["reason"].as_str().unwrap().ends_with("was not done"), "{job}");
        assert_eq!(job["tasks"][0]["attempt"], 0, "{job}");
    }
    ground.calm();
}

#[test]
fn a_job_that_is_stopped_can_tidy_up_and_one_that_does_not_listen_is_killed() {
    let ground = Ground::new(3);
    let trap = r#"
name = "trap"
run = '''trap 'echo caught TERM; date -d "$(cat $MESH_PREEMPT_AT)" +"%Y" >until' TERM; echo ready; sleep 1000; test -s until && echo over'''
"#;
    let deaf = r#"
name = "deaf"
run = "trap '' TERM; echo ready; sleep 1000"
[preempt]
grace = "1s"
"#;
    for (job, prints) in [(trap, "ready\ncaught TERM\nover\n"), (deaf, "ready\n")] {
        let id = ground.submit(0, job);
        ground.until_line(1, &id, 0, "ready");
        let fence = ground.job(1, &id).unwrap()["tasks"][0]["fence"].clone();
        assert!(!running(&id, &fence).is_empty());
        assert!(ground.mesh(1, &["stop", &id, "--wait"]).ok());
        let job = ground.until_state(2, &id, "stopped");
        assert_eq!(ground.printed(2, &id), prints, "{job}");
        assert_eq!(code(&ground.mesh(2, &["wait", &id])), Some(1));
        until_gone(&id, &fence);
    }
    ground.calm();
}
