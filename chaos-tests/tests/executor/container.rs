//! Containers. The image is made here, of one static busybox: no registry is asked.

use std::fs;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use futures::StreamExt;
use mesh_chaos_tests::hosts::{need, until};
use mesh_node::clock::steady;
use mesh_node::executor::docker::{Docker, DockerError};
use mesh_node::executor::log::Stream;
use mesh_node::executor::session::Size;
use mesh_node::executor::{Bind, Exit, Launch, Network, StartError};
use tokio::io::AsyncWriteExt;

use super::{Bench, PATIENCE, end, lines, said, until_said};

/// The image of these tests, once this machine has it; `None` where it cannot be made.
async fn image() -> Option<&'static str> {
    if !need(&["docker", "busybox", "tar"]) {
        return None;
    }
    if Docker::connect().await.is_none() {
        println!("SKIPPED: no Docker answers here");
        return None;
    }
    static IMAGE: OnceLock<String> = OnceLock::new();
    Some(IMAGE.get_or_init(|| {
        let name = "mesh-test/busybox:1".to_owned();
        make(&name, &[]);
        name
    }))
}

/// Makes an image of busybox, with changes such as `USER app`.
fn make(name: &str, changes: &[&str]) {
    let root = tempfile::tempdir().unwrap();
    for dir in ["bin", "etc", "tmp", "work", "data"] {
        fs::create_dir(root.path().join(dir)).unwrap();
    }
    let which = Command::new("sh").args(["-c", "command -v busybox"]).output().unwrap();
    let busybox = String::from_utf8(which.stdout).unwrap();
    fs::copy(busybox.trim(), root.path().join("bin/busybox")).unwrap();
    let tools = [
        "sh", "echo", "cat", "sleep", "id", "ls", "touch", "tail", "head", "env", "kill", "wc",
        "stty", "nc", "grep",
    ];
    for tool in tools {
        std::os::unix::fs::symlink("busybox", root.path().join("bin").join(tool)).unwrap();
    }
    fs::write(
        root.path().join("etc/passwd"),
        "root:x:0:0::/:/bin/sh\napp:x:1234:1234::/:/bin/sh\nsly:x:0:0::/:/bin/sh\n",
    )
    .unwrap();
    let mut tar = Command::new("tar")
        .args(["-C", root.path().to_str().unwrap(), "-cf", "-", "."])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut import = Command::new("docker");
    import.arg("import");
    for change in changes {
        import.args(["--change", change]);
    }
    let done = import.args(["-", name]).stdin(tar.stdout.take().unwrap()).output().unwrap();
    tar.wait().unwrap();
    assert!(done.status.success(), "{done:?}");
}

fn script(bench: &Bench, image: &str, script: &str) -> Launch {
    let mut launch = bench.shell(script);
    launch.image = Some(image.to_owned());
    launch
}

#[tokio::test(flavor = "multi_thread")]
async fn its_code_and_both_of_its_streams_are_kept() {
    let Some(image) = image().await else { return };
    let bench = Bench::new();
    let mut says = script(&bench, image, "echo out; echo err >&2; echo $LR; pwd; exit 3");
    says.env.insert("LR".into(), "0.1".into());
    let (ended, attempt) = bench.run(says).await;
    assert_eq!(ended.exit, Exit::Code(3));
    assert!(ended.started_ms > 0 && ended.ended_ms >= ended.started_ms, "{ended:?}");
    assert_eq!(said(&attempt, Stream::Out), ["out", "0.1", "/work"]);
    assert_eq!(said(&attempt, Stream::Err), ["err"]);
    let filter = format!("label=mesh.node={}", bench.node);
    let left = Command::new("docker").args(["ps", "-aq", "--filter", &filter]).output().unwrap();
    assert_eq!(String::from_utf8(left.stdout).unwrap(), "", "the container is gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_run_says_why() {
    let Some(image) = image().await else { return };
    let bench = Bench::new();
    let absent = script(&bench, "mesh-test/no-such-image:1", "true");
    let error = bench.executor.start(absent).await.unwrap_err();
    assert!(matches!(&error, StartError::Docker(DockerError::NoSuchImage(_))), "{error:?}");
    assert_eq!(error.to_string(), "no such image: mesh-test/no-such-image:1");
    let mut wrong = bench.launch(&["no-such-program"]);
    wrong.image = Some(image.to_owned());
    // It starts, with an init of Docker's that does not find the program, and says so.
    let attempt = bench.executor.start(wrong).await.unwrap();
    assert_eq!(attempt.wait().await.exit, Exit::Code(127));
    let words = said(&attempt, Stream::Err).concat();
    assert!(words.contains("no-such-program"), "{words}");
    let docker = bench.executor.docker().await.unwrap();
    let mut gpu = script(&bench, image, "true");
    gpu.gpus = vec!["GPU-00000000-0000-0000-0000-000000000000".into()];
    if !docker.facts().gpus {
        let error = bench.executor.start(gpu).await.unwrap_err();
        assert!(error.to_string().contains("NVIDIA container toolkit"), "{error:?}");
    }
    let error = docker.pull("mesh-test/no-such-image:1", |_| {}).await.unwrap_err();
    println!("what a pull of nothing says: {error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn too_much_memory_is_named() {
    let Some(image) = image().await else { return };
    let bench = Bench::new();
    let mut hungry = script(&bench, image, "tail /dev/zero");
    hungry.limits.memory_bytes = Some(32 << 20);
    let (ended, attempt) = bench.run(hungry).await;
    assert_eq!(ended.exit, Exit::Memory, "{:?}", lines(&attempt));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_hears_is_not_killed_and_who_does_not_is() {
    let Some(image) = image().await else { return };
    let bench = Bench::new();
    let polite = "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.02; done";
    let attempt = bench.start(script(&bench, image, polite)).await;
    until_said(&attempt, "ready");
    attempt.stop(PATIENCE).await.unwrap();
    assert_eq!(end(&attempt).await.exit, Exit::Stopped { forced: false });
    assert_eq!(said(&attempt, Stream::Out), ["ready", "bye"]);
    let bench = Bench::new();
    let deaf = "trap '' TERM; echo ready; while :; do sleep 0.02; done";
    let attempt = bench.start(script(&bench, image, deaf)).await;
    until_said(&attempt, "ready");
    let begun = steady();
    attempt.stop(Duration::from_millis(500)).await.unwrap();
    assert_eq!(end(&attempt).await.exit, Exit::Stopped { forced: true });
    assert!(begun.elapsed() >= Duration::from_millis(500), "it has its grace");
}

#[tokio::test(flavor = "multi_thread")]
async fn time_runs_out() {
    let Some(image) = image().await else { return };
    let bench = Bench::new();
    let mut slow = script(&bench, image, "sleep 600");
    slow.time_limit_ms = Some(300);
    assert_eq!(bench.run(slow).await.0.exit, Exit::Time);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_comes_back_finds_it_and_its_log_goes_on() {
    let Some(image) = image().await else { return };
    let bench = Bench::new();
    let text = "i=0; while [ ! -e go ]; do i=$((i+1)); echo $i; echo e$i >&2; sleep 0.01; done; echo last; exit 7";
    // The node's life: its runtime ends, and with it all that looked after the container.
    let launch = script(&bench, image, text);
    let (dir, executor) = (launch.dir.clone(), bench.restarted());
    let first = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let attempt = executor.start(launch).await.unwrap();
            until_said(&attempt, "5");
        });
        runtime.shutdown_timeout(Duration::ZERO);
    });
    first.join().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let found = bench.executor.attach(&dir).await.unwrap().expect("it was started");
    let seen = said(&found, Stream::Out).len();
    until(PATIENCE, || (said(&found, Stream::Out).len() > seen + 20).then_some(())).unwrap();
    fs::write(bench.dir().join("work/go"), "").unwrap();
    assert_eq!(end(&found).await.exit, Exit::Code(7));
    // No line twice, and none left out.
    let mut out = said(&found, Stream::Out);
    assert_eq!(out.pop().as_deref(), Some("last"));
    let expected: Vec<String> = (1..=out.len()).map(|n| n.to_string()).collect();
    assert_eq!(out, expected);
    let expected: Vec<String> = (1..=out.len()).map(|n| format!("e{n}")).collect();
    assert_eq!(said(&found, Stream::Err), expected);
    let late = bench.restarted().attach(&dir).await.unwrap().unwrap();
    assert_eq!(late.ended().map(|ended| ended.exit), Some(Exit::Code(7)));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_was_removed_by_others_is_lost() {
    let Some(image) = image().await else { return };
    let bench = Bench::new();
    let attempt = bench.start(script(&bench, image, "echo ready; sleep 600")).await;
    until_said(&attempt, "ready");
    let name = format!("mesh-{}-{}", bench.node, attempt.name());
    let removed = Command::new("docker").args(["rm", "-f", &name]).output().unwrap();
    assert!(removed.status.success());
    let exit = end(&attempt).await.exit;
    assert!(matches!(exit, Exit::Lost(_) | Exit::Signal(9)), "{exit:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_nobody_and_has_nothing_of_the_host() {
    let Some(image) = image().await else { return };
    let bench = Bench::new();
    let data = bench.dir().join("train");
    fs::create_dir(&data).unwrap();
    fs::write(data.join("x"), "42").unwrap();
    let text = "id -u; touch mine && echo written; cat /data/train/x; echo; touch /data/train/y || echo refused; \
                ls /var/run/docker.sock /run/docker.sock 2>/dev/null; grep -E 'CapEff|NoNewPrivs' /proc/self/status; \
                grep -c /work /proc/mounts";
    let mut looks = script(&bench, image, text);
    looks.mounts = vec![Bind { from: data.clone(), to: "/data/train".into(), read_only: true }];
    let (ended, attempt) = bench.run(looks).await;
    assert_eq!(ended.exit, Exit::Code(0), "{:?}", lines(&attempt));
    let said = said(&attempt, Stream::Out);
    assert_ne!(said[0], "0");
    assert_eq!(said[1..4], ["written", "42", "refused"]);
    assert_eq!(said[4..], ["CapEff:\t0000000000000000", "NoNewPrivs:\t1", "1"]);
    assert!(bench.dir().join("work/mine").exists() && !data.join("y").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_cannot_make_it_root() {
    let Some(_) = image().await else { return };
    if !nix::unistd::geteuid().is_root() {
        println!("SKIPPED: only root can give a container another user");
        return;
    }
    for (user, expected) in
        [("USER 4321", "4321"), ("USER app", "1234"), ("USER sly", "65534"), ("USER 0", "65534")]
    {
        let name = format!("mesh-test/user-{}:1", user.rsplit(' ').next().unwrap());
        make(&name, &[user]);
        let bench = Bench::new();
        let (_, attempt) =
            bench.run(script(&bench, &name, "id -u; touch mine && echo written")).await;
        assert_eq!(
            said(&attempt, Stream::Out),
            [expected, "written"],
            "{user}: {:?}",
            lines(&attempt)
        );
        bench.executor.docker().await.unwrap().remove_image(&name).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_further_command_runs_inside() {
    let Some(image) = image().await else { return };
    let bench = Bench::new();
    let attempt = bench.start(script(&bench, image, "echo ready; sleep 600")).await;
    until_said(&attempt, "ready");
    let words = |script: &str| -> Vec<String> { ["sh", "-c", script].map(str::to_owned).into() };
    let mut session =
        attempt.exec(&words("pwd; head -n 1; echo bad >&2; exit 4"), None).await.unwrap();
    session.input.write_all(b"typed\n").await.unwrap();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    while let Some((stream, bytes)) = session.output.recv().await {
        if stream == Stream::Out {
            out.extend_from_slice(&bytes)
        } else {
            err.extend_from_slice(&bytes)
        }
    }
    assert_eq!(session.control.wait().await.unwrap(), 4);
    assert_eq!((&*out, &*err), (&b"/work\ntyped\n"[..], &b"bad\n"[..]));
    let size = Size { rows: 31, columns: 99 };
    let mut session = attempt.exec(&words("sleep 0.2; stty size"), Some(size)).await.unwrap();
    let mut out = String::new();
    while let Some((_, bytes)) = session.output.recv().await {
        out.push_str(&String::from_utf8_lossy(&bytes));
    }
    assert_eq!(out.trim(), "31 99");
    let usage = attempt.usage().await.unwrap();
    assert!(usage.memory_bytes > 0, "{usage:?}");
    attempt.kill().await.unwrap();
    assert_eq!(end(&attempt).await.exit, Exit::Stopped { forced: true });
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_meet_only_where_they_share_a_network() {
    let Some(image) = image().await else { return };
    let listen = "echo ready; while :; do echo hello | nc -l -p 7777; done";
    for (network, expected) in [
        (Network::Apart, "refused"),
        (Network::Shared(format!("t{}", std::process::id())), "hello"),
    ] {
        let (one, two) = (Bench::new(), Bench::new());
        let mut listens = script(&one, image, listen);
        listens.network = network.clone();
        let listens = one.start(listens).await;
        until_said(&listens, "ready");
        let name = format!("mesh-{}-{}", one.node, listens.name());
        let format = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}";
        let asked = Command::new("docker").args(["inspect", "-f", format, &name]).output().unwrap();
        let address = String::from_utf8(asked.stdout).unwrap();
        let text = format!("nc -w 2 {} 7777 </dev/null || echo refused", address.trim());
        let mut calls = script(&two, image, &text);
        calls.network = network;
        let (_, calls) = two.run(calls).await;
        assert_eq!(said(&calls, Stream::Out), [expected]);
        listens.kill().await.unwrap();
        end(&listens).await;
    }
    let bench = Bench::new();
    let mut alone = script(&bench, image, "wc -l </proc/net/dev");
    alone.network = Network::None;
    let (_, alone) = bench.run(alone).await;
    // Two lines of heading, and the loopback.
    let count: u32 = said(&alone, Stream::Out)[0].trim().parse().unwrap();
    assert!(count <= 5, "{count}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_can_be_saved_and_loaded() {
    let Some(image) = image().await else { return };
    let docker = Docker::connect().await.unwrap();
    let known = docker.image(image).await.unwrap().unwrap();
    assert!(known.bytes > 1_000_000 && known.names.contains(&image.to_owned()));
    assert!(docker.images().await.unwrap().iter().any(|found| found.id == known.id));
    let parts: Vec<_> = docker.save(image).collect().await;
    let parts: Vec<bytes::Bytes> = parts.into_iter().map(|part| part.unwrap()).collect();
    assert!(parts.iter().map(bytes::Bytes::len).sum::<usize>() > 1_000_000);
    let tar = futures::stream::iter(parts.into_iter().map(Ok));
    assert_eq!(docker.load(tar).await.unwrap(), [image]);
    let absent: Vec<_> = docker.save("mesh-test/no-such-image:1").collect().await;
    assert!(matches!(&absent[0], Err(DockerError::NoSuchImage(_))), "{absent:?}");
    assert_eq!(docker.image("mesh-test/no-such-image:1").await.unwrap(), None);
    let broken = futures::stream::iter([Ok(bytes::Bytes::from_static(b"no tar"))]);
    let loaded = docker.load(broken).await;
    assert!(loaded.as_ref().map_or(true, Vec::is_empty), "{loaded:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_knows_is_swept_away() {
    let Some(image) = image().await else { return };
    let bench = Bench::new();
    let attempt = bench.start(script(&bench, image, "echo ready; sleep 600")).await;
    until_said(&attempt, "ready");
    bench.executor.sweep(&[attempt.name().to_owned()].into()).await;
    assert!(attempt.ended().is_none(), "it is known");
    bench.executor.sweep(&Default::default()).await;
    end(&attempt).await;
}

/// Not a promise but a figure: what mesh adds to Docker itself.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_line_comes_soon() {
    let Some(image) = image().await else { return };
    let bench = Bench::new();
    let rounds = if cfg!(debug_assertions) { 2 } else { 15 };
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let mut hello = script(&bench, image, "echo hello");
        hello.dir = bench.dir().join(format!("attempt-{round}"));
        hello.name = format!("{}-{round}-1", bench.node);
        let begun = steady();
        let attempt = bench.start(hello).await;
        let log = mesh_node::executor::log::Reader::new(attempt.log_dir(), Default::default());
        let mut follower = mesh_node::executor::log::Follower::new(log);
        tokio::time::timeout(PATIENCE, follower.read()).await.unwrap().unwrap();
        ours.push(begun.elapsed());
        end(&attempt).await;
        let begun = steady();
        let ran = Command::new("docker").args(["run", "--rm", image, "echo", "hello"]).output();
        theirs.push(begun.elapsed());
        assert!(ran.unwrap().status.success());
    }
    ours.sort_unstable();
    theirs.sort_unstable();
    println!(
        "first line: {:?}; docker run --rm, whole: {:?}",
        ours[rounds / 2],
        theirs[rounds / 2]
    );
}
