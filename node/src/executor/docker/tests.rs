use super::super::launch::tests::small;
use super::super::launch::{Bind, Port};
use super::*;

#[test]
fn nobody_is_root() {
    const ROOT: Ids = Ids { uid: 0, gid: 0 };
    let told = |image: &str, node| match User::chosen(image, node) {
        User::Number(ids, told) => (ids.uid, told),
        User::Named(name) => (u32::MAX, name),
    };
    for root in ["", "0", "0:0", "root", "root:root", "00"] {
        assert_eq!(told(root, ROOT), (65_534, "65534:65534".into()), "{root:?}");
    }
    assert_eq!(told("1000", ROOT), (1000, "1000".into()));
    assert_eq!(told("1000:50", ROOT), (1000, "1000:50".into()));
    assert_eq!(told("jovyan:users", ROOT), (u32::MAX, "jovyan".into()));
    assert_eq!(told("root", Ids { uid: 7, gid: 8 }), (7, "7:8".into()));
}

#[test]
fn a_container_gets_what_was_asked_for_and_nothing_else() {
    let temp = tempfile::tempdir().unwrap();
    let mut launch = small(temp.path());
    launch.argv = vec!["python".into(), "train.py".into()];
    launch.env.insert("LR".into(), "0.1".into());
    launch.limits.memory_bytes = Some(64 << 20);
    launch.limits.cpu_milli = Some(1500);
    launch.gpus = vec!["GPU-1".into()];
    let (from, to) = (temp.path().join("train"), "/data/train".into());
    launch.mounts = vec![Bind { from, to, read_only: true }];
    launch.ports = vec![Port { name: "http".into(), inside: 80, outside: 30_080 }];
    let who = User::chosen("", Ids { uid: 0, gid: 0 });
    let body = request(&launch, "abcd", "sha256:00", "mesh", &who);
    assert_eq!(body.user.as_deref(), Some("65534:65534"));
    assert_eq!(body.entrypoint.unwrap(), ["python", "train.py"]);
    assert_eq!(body.env.unwrap(), ["HOME=/work", "LR=0.1", "MESH_RUN=job-0-1"]);
    assert_eq!(body.labels.unwrap()["mesh.attempt"], "job-0-1");
    let host = body.host_config.unwrap();
    assert_eq!((host.memory, host.memory_swap), (Some(64 << 20), Some(64 << 20)));
    assert_eq!((host.cpu_quota, host.cpu_period), (Some(150_000), Some(100_000)));
    assert_eq!(host.cap_drop.unwrap(), ["ALL"]);
    assert_eq!(host.security_opt.unwrap(), ["no-new-privileges"]);
    assert_eq!((host.privileged, host.cap_add, host.binds), (Some(false), None, None));
    let mounts = host.mounts.unwrap();
    let seen: Vec<(&str, bool)> = mounts
        .iter()
        .map(|mount| (mount.target.as_deref().unwrap(), mount.read_only.unwrap()))
        .collect();
    assert_eq!(seen, [("/work", false), ("/data/train", true)]);
    assert_eq!(host.device_requests.unwrap()[0].device_ids.as_ref().unwrap(), &["GPU-1"]);
    let ports = host.port_bindings.unwrap();
    let outside = ports["80/tcp"].as_ref().unwrap()[0].host_port.as_deref();
    assert_eq!(outside, Some("30080"));
}

#[test]
fn a_line_has_a_date_to_the_nanosecond() {
    let line = LogOutput::StdErr { message: "2026-11-17T16:50:00.000000001Z a b\n".into() };
    let (stream, at, text, is_whole) = dated(&line).unwrap();
    assert_eq!((stream, text, is_whole), (Stream::Err, &b"a b"[..], true));
    assert_eq!(at % 1_000_000_000, 1);
    let part = LogOutput::StdOut { message: "2026-11-17T16:50:00.5Z 37 %".into() };
    assert!(!dated(&part).unwrap().3);
    assert!(dated(&LogOutput::StdOut { message: "no date".into() }).is_none());
    assert_eq!(millis(Some("1970-01-01T00:00:01.5Z")), 1500);
    assert_eq!(millis(Some("0001-01-01T00:00:00Z")), 0);
    assert_eq!(millis(None), 0);
}

#[test]
fn a_user_is_looked_up_in_the_image() {
    let text = "root:x:0:0::/root:/bin/sh\napp:x:1234:99::/:/bin/sh\ntoor:x:0:0::/:/bin/sh\n";
    let mut tar = vec![0; 512];
    tar[..6].copy_from_slice(b"passwd");
    tar[124..135].copy_from_slice(format!("{:011o}", text.len()).as_bytes());
    tar[156] = b'0';
    tar.extend_from_slice(text.as_bytes());
    assert_eq!(number_in(&tar, "app"), Some(1234));
    assert_eq!(number_in(&tar, "toor"), Some(0));
    assert_eq!(number_in(&tar, "nobody"), None);
    assert_eq!(number_in(&tar[..100], "app"), None);
    assert_eq!(number_in(&tar[..540], "app"), None, "cut short");
    tar[156] = b'2';
    assert_eq!(number_in(&tar, "app"), None, "a link leads anywhere");
}

#[test]
fn the_daemons_words_are_understood() {
    let said = |status_code, message: &str| {
        DockerError::from(Error::DockerResponseServerError { status_code, message: message.into() })
    };
    assert!(matches!(said(404, "No such container: x"), DockerError::NoSuchContainer));
    let gpu = "could not select device driver \"nvidia\" with capabilities: [[gpu]]";
    assert!(matches!(said(500, gpu), DockerError::NoGpus));
    assert!(matches!(said(400, "bad"), DockerError::Refused(words) if words == "bad"));
}

#[test]
fn first_words_are_counted_by_the_time_of_the_last() {
    let started = 1_700_000_000_500_000_123;
    let before = 1_700_000_000_300_000_000;
    assert_eq!(words_before(before + 3, started), 3);
    assert_eq!(words_before(started + 5, started), 0, "a line of the log");
    assert_eq!(words_before(started - 1_000, started), 0, "the daemon's clock, to a hair");
    assert_eq!(words_before(0, started), 0);
}
