//! Plain processes behind their supervisors.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use mesh_chaos_tests::hosts::{need, until};
use mesh_node::clock::steady;
use mesh_node::executor::log::{Follower, Position, Reader, Rotation, Stream};
use mesh_node::executor::session::Size;
use mesh_node::executor::{Bind, Exit, Network, StartError};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::AsyncWriteExt;

use super::{
    Bench, PATIENCE, alive, end, executor, given_to, is_open_to_all, launch, lines, said,
    until_said,
};

/// Names a directory to a further process of this test, which then starts something there.
const STARTER: &str = "MESH_TEST_STARTER";

fn is_root() -> bool {
    let is_root = nix::unistd::geteuid().is_root();
    if !is_root {
        println!("SKIPPED: only root can give a process another user and a root of its own");
    }
    is_root
}

#[tokio::test(flavor = "multi_thread")]
async fn its_code_and_both_of_its_streams_are_kept() {
    let bench = Bench::new();
    let (ended, attempt) =
        bench.run(bench.shell("echo out; echo err >&2; echo more; exit 3")).await;
    assert_eq!(ended.exit, Exit::Code(3));
    assert!(ended.started_ms > 0 && ended.ended_ms >= ended.started_ms);
    assert_eq!(said(&attempt, Stream::Out), ["out", "more"]);
    assert_eq!(said(&attempt, Stream::Err), ["err"]);
    assert_eq!(attempt.ended(), Some(ended));
    let complaints = fs::read_to_string(attempt.dir().join("shim.log")).unwrap();
    assert_eq!(complaints, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_is_named() {
    let bench = Bench::new();
    let (ended, _) = bench.run(bench.shell("kill -SEGV $$")).await;
    assert_eq!(ended.exit, Exit::Signal(11));
    let bench = Bench::new();
    let (ended, _) = bench.run(bench.shell("kill -9 $$")).await;
    assert_eq!(ended.exit, Exit::Signal(9), "nobody of ours has killed it");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_run_says_why() {
    let bench = Bench::new();
    let error = bench.executor.start(bench.launch(&["no-such-program"])).await.unwrap_err();
    assert!(
        matches!(&error, StartError::Refused(why) if why.contains("no-such-program")),
        "{error:?}"
    );
    // And so does its directory, for a node that was not there to hear it.
    let found = bench.restarted().attach(&bench.dir().join("attempt")).await.unwrap().unwrap();
    assert!(
        matches!(&end(&found).await.exit, Exit::CannotStart(why) if why.contains("no program"))
    );
    assert!(alive(found.name()).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn all_of_it_is_killed_also_what_put_itself_into_the_background() {
    let bench = Bench::new();
    let script = "(setsid sh -c 'sleep 600' &) ; (sleep 600 &) ; echo ready; sleep 600";
    let attempt = bench.start(bench.shell(script)).await;
    until_said(&attempt, "ready");
    assert!(until(PATIENCE, || (alive(attempt.name()).len() >= 4).then_some(())).is_some());
    attempt.kill().await.unwrap();
    assert_eq!(end(&attempt).await.exit, Exit::Stopped { forced: true });
    assert_eq!(alive(attempt.name()), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_it_leaves_behind_ends_with_it() {
    let bench = Bench::new();
    let (ended, attempt) =
        bench.run(bench.shell("(setsid sleep 600 >/dev/null 2>&1 &); exit 5")).await;
    assert_eq!(ended.exit, Exit::Code(5));
    assert_eq!(alive(attempt.name()), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_hears_is_not_killed_and_who_does_not_is() {
    let bench = Bench::new();
    let polite = "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.02; done";
    let attempt = bench.start(bench.shell(polite)).await;
    until_said(&attempt, "ready");
    attempt.stop(PATIENCE).await.unwrap();
    assert_eq!(end(&attempt).await.exit, Exit::Stopped { forced: false });
    assert_eq!(said(&attempt, Stream::Out), ["ready", "bye"]);
    let bench = Bench::new();
    let deaf = "trap '' TERM; echo ready; while :; do sleep 0.02; done";
    let attempt = bench.start(bench.shell(deaf)).await;
    until_said(&attempt, "ready");
    let begun = steady();
    attempt.stop(Duration::from_millis(400)).await.unwrap();
    assert_eq!(end(&attempt).await.exit, Exit::Stopped { forced: true });
    assert!(begun.elapsed() >= Duration::from_millis(400), "it has its grace");
    assert_eq!(alive(attempt.name()), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn too_much_memory_ends_it_and_nobody_else() {
    let bench = Bench::new();
    let mut hungry = bench.launch(&["tail", "/dev/zero"]);
    hungry.limits.memory_bytes = Some(64 << 20);
    let (ended, attempt) = bench.run(hungry).await;
    assert_eq!(ended.exit, Exit::Memory, "{:?}", lines(&attempt));
    assert!(said(&attempt, Stream::Note)[0].contains("64 MiB"));
    if bench.executor.capabilities().memory_limit {
        assert!(ended.peak_memory_bytes <= 64 << 20, "{}", ended.peak_memory_bytes);
    }
    // A part of it that is killed names the cause, too.
    let bench = Bench::new();
    let mut parent = bench.shell("tail /dev/zero; echo after; exit 9");
    parent.limits.memory_bytes = Some(64 << 20);
    assert_eq!(bench.run(parent).await.0.exit, Exit::Memory);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_bomb_is_put_out() {
    let bench = Bench::new();
    if !bench.executor.capabilities().pids_limit {
        println!("SKIPPED: the number of processes cannot be limited here");
        return;
    }
    let mut bomb = bench.shell("echo ready; f() { f | f & }; f; sleep 600");
    bomb.limits.pids = 100;
    let attempt = bench.start(bomb).await;
    until_said(&attempt, "ready");
    std::thread::sleep(Duration::from_millis(300));
    assert!(alive(attempt.name()).len() <= 100);
    attempt.kill().await.unwrap();
    end(&attempt).await;
    assert_eq!(alive(attempt.name()), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn time_runs_out() {
    let bench = Bench::new();
    let mut slow = bench.shell("sleep 600");
    slow.time_limit_ms = Some(200);
    let begun = steady();
    let (ended, attempt) = bench.run(slow).await;
    assert_eq!(ended.exit, Exit::Time);
    assert!(begun.elapsed() >= Duration::from_millis(200));
    assert!(said(&attempt, Stream::Note)[0].contains("0.2 s"));
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_turn_over_and_each_stream_stays_in_order() {
    let bench = Bench::new();
    let script = "i=0; while [ $i -lt 20000 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done";
    let mut chatty = bench.shell(script);
    chatty.log = Rotation { file_bytes: 100_000, files: 4 };
    let (ended, attempt) = bench.run(chatty).await;
    assert_eq!(ended.exit, Exit::Code(0));
    assert_eq!(fs::read_dir(attempt.log_dir()).unwrap().count(), 4);
    for (stream, word) in [(Stream::Out, "out"), (Stream::Err, "err")] {
        let said = said(&attempt, stream);
        assert!(said.len() > 1000);
        assert_eq!(said.last().unwrap(), &format!("{word} 19999"));
        let first: usize = said[0].rsplit(' ').next().unwrap().parse().unwrap();
        let expected: Vec<String> = (first..20000).map(|n| format!("{word} {n}")).collect();
        assert_eq!(said, expected);
    }
}

/// Not a test by itself: a node that starts an attempt and is killed. See the next ones.
#[tokio::test(flavor = "multi_thread")]
async fn starter() {
    let Some(dir) = std::env::var_os(STARTER) else { return };
    let script = std::env::var("MESH_TEST_SCRIPT").unwrap();
    let name = std::env::var("MESH_TEST_NAME").unwrap();
    let mut launch = launch(dir.as_ref(), &format!("{name}-0-1"), &["sh", "-c", &script]);
    launch.limits.memory_bytes =
        std::env::var("MESH_TEST_MEMORY").ok().map(|mib| mib.parse::<u64>().unwrap() << 20);
    let attempt = executor(&name).start(launch).await.unwrap();
    println!("\nSTARTED");
    let ended = end(&attempt).await;
    println!("\nENDED {:?} {}", ended.exit, alive(attempt.name()).len());
}

/// Starts an attempt in a further process of this test. `before` are words that it is started by.
fn start_elsewhere(
    before: &[&str],
    dir: &std::path::Path,
    name: &str,
    script: &str,
) -> std::process::Child {
    let own = std::env::current_exe().unwrap();
    let mut words = before.iter().map(std::ffi::OsString::from).chain([own.into()]);
    Command::new(words.next().unwrap())
        .args(words)
        .args(["process::starter", "--exact", "--nocapture"])
        .env(STARTER, dir)
        .env("MESH_TEST_NAME", name)
        .env("MESH_TEST_SCRIPT", script)
        .env("MESH_BIN", mesh_chaos_tests::hosts::binary::binary().unwrap())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn heard(child: &mut std::process::Child, word: &str) -> String {
    let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    let mut all = String::new();
    for line in lines.map_while(Result::ok) {
        if line.starts_with(word) {
            return line;
        }
        all.push_str(&line);
        all.push('\n');
    }
    panic!("{word} was not said, but:\n{all}");
}

#[tokio::test(flavor = "multi_thread")]
async fn it_outlives_the_node_and_its_end_is_found_later() {
    let bench = Bench::new();
    let script = "echo one; while [ ! -e go ]; do sleep 0.02; done; echo two; exit 7";
    let mut node = start_elsewhere(&["env"], bench.dir(), &bench.node, script);
    heard(&mut node, "STARTED");
    node.kill().unwrap();
    node.wait().unwrap();
    let dir = bench.dir().join("attempt");
    let found = bench.executor.attach(&dir).await.unwrap().expect("it was started");
    assert!(found.started_ms() > 0 && found.ended().is_none());
    until_said(&found, "one");
    // Twice restarted is no worse than once.
    let again = bench.restarted().attach(&dir).await.unwrap().unwrap();
    fs::write(bench.dir().join("work/go"), "").unwrap();
    assert_eq!(end(&found).await.exit, Exit::Code(7));
    assert_eq!(end(&again).await.exit, Exit::Code(7));
    assert_eq!(said(&found, Stream::Out), ["one", "two"]);
    // It ended while nobody looked.
    let late = bench.restarted().attach(&dir).await.unwrap().unwrap();
    assert_eq!(late.ended().map(|ended| ended.exit), Some(Exit::Code(7)));
    late.stop(Duration::ZERO).await.expect("there is nothing to stop");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_comes_back_can_stop_it() {
    let bench = Bench::new();
    let mut node = start_elsewhere(&["env"], bench.dir(), &bench.node, "sleep 600 & sleep 600");
    heard(&mut node, "STARTED");
    node.kill().unwrap();
    node.wait().unwrap();
    let found = bench.executor.attach(&bench.dir().join("attempt")).await.unwrap().unwrap();
    found.stop(PATIENCE).await.unwrap();
    assert_eq!(end(&found).await.exit, Exit::Stopped { forced: false });
    assert_eq!(alive(found.name()), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_supervisor_it_is_lost_and_nothing_of_it_goes_on() {
    let bench = Bench::new();
    let attempt = bench.start(bench.shell("(setsid sleep 600 &); echo ready; sleep 600")).await;
    until_said(&attempt, "ready");
    let lock = fs::read_to_string(attempt.dir().join("lock")).unwrap();
    let pid: i32 = lock.split(' ').next().unwrap().parse().unwrap();
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    assert!(matches!(end(&attempt).await.exit, Exit::Lost(_)));
    assert!(until(PATIENCE, || alive(attempt.name()).is_empty().then_some(())).is_some());
    let found = bench.restarted().attach(attempt.dir()).await.unwrap().unwrap();
    assert!(matches!(end(&found).await.exit, Exit::Lost(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_supervisor_that_is_asked_to_end_ends_its_task_first() {
    let bench = Bench::new();
    let attempt = bench
        .start(bench.shell("trap 'exit 0' TERM; echo ready; while :; do sleep 0.02; done"))
        .await;
    until_said(&attempt, "ready");
    let lock = fs::read_to_string(attempt.dir().join("lock")).unwrap();
    let pid: i32 = lock.split(' ').next().unwrap().parse().unwrap();
    kill(Pid::from_raw(pid), Signal::SIGTERM).unwrap();
    assert_eq!(end(&attempt).await.exit, Exit::Stopped { forced: false });
}

#[tokio::test(flavor = "multi_thread")]
async fn it_inherits_nothing() {
    let bench = Bench::new();
    // A file that was left open by somebody who did not care.
    let secret = bench.dir().join("secret");
    fs::write(&secret, "hush").unwrap();
    let leaked = nix::unistd::dup(File::open(&secret).unwrap()).unwrap();
    assert!(leaked.as_raw_fd() > 2);
    let mut look = bench.shell("env; echo --; ls /proc/self/fd; echo --; grep -E 'SigBlk|SigIgn|NoNewPrivs' /proc/self/status; umask; ps -o sid=,tty= $$ || true");
    look.env.insert("LR".into(), "0.1".into());
    let (_, attempt) = bench.run(look).await;
    drop(leaked);
    let said = said(&attempt, Stream::Out);
    let mut parts = said.split(|line| line == "--");
    let env: Vec<&str> =
        parts.next().unwrap().iter().filter_map(|line| line.split('=').next()).collect();
    let known = [
        "PATH",
        "LANG",
        "USER",
        "LOGNAME",
        "HOME",
        "TMPDIR",
        "LR",
        "MESH_RUN",
        "CUDA_VISIBLE_DEVICES",
        "NVIDIA_VISIBLE_DEVICES", // And what the shell itself adds:
        "PWD",
        "OLDPWD",
        "SHLVL",
        "_",
    ];
    assert!(env.iter().all(|key| known.contains(key)), "{env:?}");
    assert!(env.contains(&"LR"));
    // Standard input and output, and the directory that `ls` itself reads.
    assert_eq!(parts.next().unwrap(), ["0", "1", "2", "3"]);
    let rest = parts.next().unwrap().join("\n");
    assert!(rest.contains("SigBlk:\t0000000000000000"), "{rest}");
    // Rust ignores SIGPIPE, and a pipeline that inherits this never ends.
    let ignored = rest.lines().find_map(|line| line.strip_prefix("SigIgn:\t")).unwrap();
    assert_eq!(u64::from_str_radix(ignored, 16).unwrap() & (1 << 12), 0, "{rest}");
    assert!(rest.contains("NoNewPrivs:\t1"), "{rest}");
    assert!(rest.contains("0077"), "{rest}");
}

#[tokio::test(flavor = "multi_thread")]
async fn it_has_no_rights_but_its_own() {
    if !is_root() {
        return;
    }
    let bench = Bench::new();
    let key = bench.dir().join("node.key");
    fs::write(&key, "secret").unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let script = format!(
        "id -u; id -G; pwd; touch mine && echo written; \
         cat {key} || echo refused; ls {dir} || echo refused; cat /etc/shadow || echo refused; \
         [ -r /var/run/docker.sock ] && echo docker; touch /tmp/x /dev/shm/y && echo temporary; ls /proc | grep -c '^[0-9]'",
        key = key.display(),
        dir = bench.dir().join("attempt").display(),
    );
    let (ended, attempt) = bench.run(bench.shell(&script)).await;
    let said = said(&attempt, Stream::Out);
    assert_eq!(ended.exit, Exit::Code(0), "{:?}", lines(&attempt));
    let uid: u32 = said[0].parse().unwrap();
    assert!(uid > 65_535, "{uid}");
    assert_eq!(said[1], said[0], "no further groups");
    assert_eq!(said[2..7], ["/work", "written", "refused", "refused", "refused"]);
    assert_eq!(said[7], "temporary", "{said:?}");
    assert!(said[8].parse::<u32>().unwrap() < 8, "it sees its own processes: {said:?}");
    let mine = fs::metadata(bench.dir().join("work/mine")).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&mine), uid);
    assert_eq!(mine.permissions().mode() & 0o777, 0o600);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_attempt_cannot_see_into_another() {
    if !is_root() {
        return;
    }
    let (one, two) = (Bench::new(), Bench::new());
    let mut quiet = one.shell("touch /tmp/here /dev/shm/here; echo ready; sleep 600");
    quiet.env.insert("SECRET".into(), "hush".into());
    let quiet = one.start(quiet).await;
    until_said(&quiet, "ready");
    let pids = alive(quiet.name()).join(" ");
    let script = format!(
        "for p in {pids}; do cat /proc/$p/environ && echo seen; kill -0 $p && echo touched; done; ls /tmp /dev/shm"
    );
    let (_, nosy) = two.run(two.shell(&script)).await;
    let said = said(&nosy, Stream::Out);
    assert!(said.iter().all(|line| !line.contains("hush")), "{said:?}");
    for word in ["seen", "touched", "here"] {
        assert!(!said.iter().any(|line| line == word), "{said:?}");
    }
    quiet.kill().await.unwrap();
    end(&quiet).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_finds_its_data_and_cannot_change_it() {
    if !is_root() {
        return;
    }
    let bench = Bench::new();
    let data = bench.dir().join("objects/train");
    fs::create_dir_all(&data).unwrap();
    fs::write(data.join("x"), "42").unwrap();
    fs::set_permissions(bench.dir().join("objects"), fs::Permissions::from_mode(0o700)).unwrap();
    let mut reads = bench.shell(
        "cat /data/train/x; echo; touch /data/train/y || echo refused; cat /data/one; echo; ls /data",
    );
    reads.mounts = vec![
        Bind { from: data.clone(), to: "/data/train".into(), read_only: true },
        Bind { from: data.join("x"), to: "/data/one".into(), read_only: true },
    ];
    let (_, attempt) = bench.run(reads).await;
    assert_eq!(said(&attempt, Stream::Out), ["42", "refused", "42", "one", "train"]);
    assert!(!data.join("y").exists());
    // Nothing of it is mounted for others.
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(bench.dir().to_str().unwrap()), "{mounts}");
    let mut odd = bench.shell("true");
    odd.dir = bench.dir().join("second");
    odd.mounts = vec![Bind { from: data, to: "/etc/no-such-place".into(), read_only: true }];
    let error = bench.executor.start(odd).await.unwrap_err();
    assert!(error.to_string().contains("/etc/no-such-place"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn it_can_be_kept_off_the_network() {
    if !is_root() {
        return;
    }
    let bench = Bench::new();
    let mut alone = bench.shell("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '");
    alone.network = Network::None;
    let (_, attempt) = bench.run(alone).await;
    let devices = said(&attempt, Stream::Out);
    assert!(devices.contains(&"lo".to_owned()), "{devices:?}");
    assert!(
        !devices.iter().any(|name| name.starts_with("eth") || name.starts_with("en")),
        "{devices:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_further_command_is_one_of_its_own() {
    let bench = Bench::new();
    let mut runs = bench.shell("echo ready; sleep 600");
    runs.env.insert("LR".into(), "0.1".into());
    let attempt = bench.start(runs).await;
    until_said(&attempt, "ready");
    let script = "pwd; id -u; echo $LR; cat; echo bad >&2; exit 4";
    let words: Vec<String> = ["sh", "-c", script].map(str::to_owned).into();
    let mut session = attempt.exec(&words, None).await.unwrap();
    session.input.write_all(b"typed\n").await.unwrap();
    drop(session.input);
    let (mut out, mut err) = (Vec::new(), Vec::new());
    while let Some((stream, bytes)) = session.output.recv().await {
        if stream == Stream::Out {
            out.extend_from_slice(&bytes)
        } else {
            err.extend_from_slice(&bytes)
        }
    }
    assert_eq!(session.control.wait().await.unwrap(), 4);
    let out = String::from_utf8(out).unwrap();
    let out: Vec<&str> = out.lines().collect();
    assert_eq!(out[2..], ["0.1", "typed"]);
    if nix::unistd::geteuid().is_root() {
        assert_eq!(out[0], "/work");
        assert_ne!(out[1], "0");
    }
    assert_eq!(err, b"bad\n");
    // It ends with the attempt.
    let words: Vec<String> = ["sleep", "600"].map(str::to_owned).into();
    let mut session = attempt.exec(&words, None).await.unwrap();
    until(PATIENCE, || (alive(attempt.name()).len() >= 3).then_some(())).unwrap();
    attempt.kill().await.unwrap();
    end(&attempt).await;
    assert_eq!(session.control.wait().await.unwrap(), 128 + 9);
    assert!(attempt.exec(&words, None).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_has_a_size_and_can_be_interrupted() {
    // Whoever is started in the background may ignore Ctrl-C, and so do its children; who listens for it, as a node
    // does, passes nothing of that on.
    let _heard = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt()).unwrap();
    let bench = Bench::new();
    let attempt = bench.start(bench.shell("sleep 600")).await;
    let script = "tty >/dev/null && echo terminal; stty size; read x; stty size; sleep 600";
    let words: Vec<String> = ["sh", "-c", script].map(str::to_owned).into();
    let mut session = attempt.exec(&words, Some(Size { rows: 24, columns: 80 })).await.unwrap();
    let mut out = String::new();
    let mut wait_for = async |out: &mut String, word: &str| {
        while !out.contains(word) {
            let more = tokio::time::timeout(PATIENCE, session.output.recv()).await;
            let (_, bytes) =
                more.unwrap_or_else(|_| panic!("{out}")).unwrap_or_else(|| panic!("{out}"));
            out.push_str(&String::from_utf8_lossy(&bytes));
        }
    };
    wait_for(&mut out, "24 80").await;
    assert!(out.contains("terminal"), "{out}");
    session.control.resize(Size { rows: 50, columns: 132 }).await.unwrap();
    session.input.write_all(b"\n").await.unwrap();
    wait_for(&mut out, "50 132").await;
    // Again and again: dash swallows an interrupt that comes between its fork and the exec of `sleep`.
    let mut ended = std::pin::pin!(session.control.wait());
    let begun = steady();
    let code = loop {
        assert!(begun.elapsed() < PATIENCE, "{out}");
        let _ = session.input.write_all(b"\x03").await;
        if let Ok(code) = tokio::time::timeout(Duration::from_secs(1), &mut ended).await {
            break code.unwrap();
        }
    };
    assert_eq!(code, 128 + 2);
    attempt.kill().await.unwrap();
    end(&attempt).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_it_uses_is_known() {
    let bench = Bench::new();
    let attempt = bench.start(bench.shell("x=0; while :; do x=$((x+1)); done")).await;
    let begun = steady();
    let mut used = attempt.usage().await.unwrap();
    while (used.cpu_ms < 100 || used.memory_bytes == 0) && begun.elapsed() < PATIENCE {
        tokio::time::sleep(Duration::from_millis(20)).await;
        used = attempt.usage().await.unwrap();
    }
    assert!(used.cpu_ms >= 100 && (1..100 << 20).contains(&used.memory_bytes), "{used:?}");
    attempt.kill().await.unwrap();
    let ended = end(&attempt).await;
    assert!(ended.cpu_ms >= 100 && ended.peak_memory_bytes > 0, "{ended:?}");
    assert_eq!(attempt.usage().await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn processor_time_is_limited() {
    let bench = Bench::new();
    if !bench.executor.capabilities().cpu_limit {
        println!("SKIPPED: processor time cannot be limited here");
        return;
    }
    let mut busy = bench.shell("while :; do :; done");
    busy.limits.cpu_milli = Some(200);
    busy.time_limit_ms = Some(2000);
    let (ended, _) = bench.run(busy).await;
    let share = ended.cpu_ms as f64 / (ended.ended_ms - ended.started_ms) as f64;
    assert!(share < 0.3, "{share}");
}

/// Without root and without cgroups, the supervisor does what the system does otherwise.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_rights_does_what_it_can() {
    if !is_root() || !need(&["setpriv"]) {
        return;
    }
    let mesh = mesh_chaos_tests::hosts::binary::binary().unwrap();
    if !is_open_to_all(mesh) || !is_open_to_all(&std::env::current_exe().unwrap()) {
        println!("SKIPPED: another user cannot run the binaries of this test");
        return;
    }
    const UID: u32 = 64_999;
    let as_other = ["setpriv", "--reuid=64999", "--regid=64999", "--clear-groups", "--"];
    for (script, memory, expected) in [
        ("echo hello; exit 3", None, "ENDED Code(3) 0"),
        ("tail /dev/zero", Some("64"), "ENDED Memory 0"),
        ("(setsid sleep 600 &); exit 5", None, "ENDED Code(5) 0"),
    ] {
        let bench = Bench::new();
        let dir = given_to(bench.dir(), UID);
        let mut before: Vec<String> = as_other.map(str::to_owned).into();
        if let Some(memory) = memory {
            before.extend(["env".to_owned(), format!("MESH_TEST_MEMORY={memory}")]);
        }
        let before: Vec<&str> = before.iter().map(String::as_str).collect();
        let mut node = start_elsewhere(&before, &dir, &bench.node, script);
        assert_eq!(heard(&mut node, "ENDED"), expected, "{script}");
        node.wait().unwrap();
    }
}

/// Not a promise but a figure: from `start` to the first line, as somebody who follows the log sees it.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_line_comes_soon() {
    let bench = Bench::new();
    let mut times = Vec::new();
    let rounds = if cfg!(debug_assertions) { 10 } else { 100 };
    for round in 0..rounds {
        let mut hello = bench.launch(&["echo", "hello"]);
        hello.dir = bench.dir().join(format!("attempt-{round}"));
        hello.name = format!("{}-{round}-1", bench.node);
        let log = hello.dir.join("log");
        fs::create_dir_all(&log).unwrap();
        let begun = steady();
        let attempt = bench.start(hello).await;
        let started = begun.elapsed();
        let mut follower = Follower::new(Reader::new(&log, Position::default()));
        let first = tokio::time::timeout(PATIENCE, follower.read()).await.unwrap().unwrap();
        let seen = begun.elapsed();
        assert_eq!(first[0].text, b"hello");
        end(&attempt).await;
        times.push((seen, started, begun.elapsed()));
    }
    times.sort_unstable();
    let at = |share: usize| times[(times.len() - 1) * share / 100];
    let mut text = String::new();
    for share in [0, 50, 90, 99] {
        let (seen, started, ended) = at(share);
        text += &format!("p{share}: first line {seen:?}, started {started:?}, ended {ended:?}\n");
    }
    std::io::stdout().write_all(text.as_bytes()).unwrap();
    assert!(at(50).0 < Duration::from_millis(500), "{text}");
}
