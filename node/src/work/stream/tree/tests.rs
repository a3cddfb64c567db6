//! Trees there and back, and paths that lead elsewhere.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;

use super::*;

/// All frames of a source.
fn frames_of(source: Source) -> Result<Vec<Frame>, TreeError> {
    let (sender, mut queue) = mpsc::channel(4);
    let sends = std::thread::spawn(move || source.send(&sender));
    let mut frames = Vec::new();
    while let Some(frame) = queue.blocking_recv() {
        frames.push(frame);
    }
    sends.join().unwrap().map(|()| frames)
}

fn received(sink: Sink, frames: Vec<Frame>) -> Result<Received, TreeError> {
    let (sender, queue) = mpsc::channel(4);
    let sends = std::thread::spawn(move || {
        for frame in frames {
            if sender.blocking_send(frame).is_err() {
                return;
            }
        }
    });
    let received = sink.receive(queue, |_| {});
    sends.join().unwrap();
    received
}

fn file(path: &str, bytes: u64) -> Frame {
    Frame::Entry(Entry { path: path.into(), is_dir: false, mode: 0o644, bytes })
}

fn directory(path: &str) -> Frame {
    Frame::Entry(Entry { path: path.into(), is_dir: true, mode: 0o755, bytes: 0 })
}

fn bytes(bytes: &[u8]) -> Frame {
    Frame::Bytes(bytes.to_vec().into())
}

/// What is in a directory, with modes.
fn content(dir: &Path) -> BTreeMap<PathBuf, (u32, Option<Vec<u8>>)> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![dir.to_path_buf()];
    while let Some(at) = dirs.pop() {
        for entry in fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            let about = fs::symlink_metadata(&path).unwrap();
            let body = about.is_file().then(|| fs::read(&path).unwrap());
            let mode = about.permissions().mode() & 0o777;
            found.insert(path.strip_prefix(dir).unwrap().to_path_buf(), (mode, body));
            if about.is_dir() {
                dirs.push(path);
            }
        }
    }
    found
}

struct Scene {
    temp: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir(temp.path().join("home")).unwrap();
        fs::write(temp.path().join("secret"), "key").unwrap();
        Self { temp }
    }

    fn home(&self) -> PathBuf {
        self.temp.path().join("home")
    }

    fn root(&self) -> Root {
        Root::of_task(&self.home()).unwrap()
    }

    fn get(&self, path: &str) -> Result<Vec<Frame>, TreeError> {
        frames_of(Source::beneath(&self.root(), path)?)
    }

    fn put(&self, path: &str, name: &str, frames: Vec<Frame>) -> Result<Received, TreeError> {
        received(Sink::beneath(&self.root(), path, name)?, frames)
    }

    /// Nothing beside the task's directory has changed, and nothing is left over in it.
    fn is_clean(&self) {
        let outside: Vec<_> = fs::read_dir(self.temp.path()).unwrap().flatten().collect();
        assert_eq!(outside.len(), 2, "{outside:?}");
        assert_eq!(fs::read(self.temp.path().join("secret")).unwrap(), b"key");
        let left = content(&self.home());
        let partial = |path: &PathBuf| path.to_string_lossy().contains(PARTIAL);
        assert!(!left.keys().any(partial), "{left:?}");
    }
}

#[test]
fn a_tree_comes_out_as_it_went_in() {
    let scene = Scene::new();
    let from = scene.home().join("out");
    fs::create_dir_all(from.join("a/b")).unwrap();
    fs::create_dir(from.join("empty")).unwrap();
    fs::write(from.join("none"), "").unwrap();
    fs::write(from.join("a/run.sh"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(from.join("a/run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    let large: Vec<u8> = (0..3 * MAX_BYTES + 17).map(|n| n as u8).collect();
    fs::write(from.join("a/b/large"), &large).unwrap();
    symlink("a", from.join("link")).unwrap();
    let frames = scene.get("out").unwrap();
    assert!(frames.contains(&Frame::LeftOut(1)));
    let Frame::Entry(top) = &frames[0] else { panic!("{:?}", frames[0]) };
    assert_eq!(top.bytes, large.len() as u64 + 10);
    let there = scene.put("copies/", "out", frames.clone()).unwrap();
    assert_eq!((there.files, there.left_out), (3, 1));
    assert_eq!(there.bytes, large.len() as u64 + 10);
    fs::remove_file(from.join("link")).unwrap();
    assert_eq!(content(&scene.home().join("copies/out")), content(&from));
    // Again over what is there.
    scene.put("copies", "out", frames).unwrap();
    assert_eq!(content(&scene.home().join("copies/out")), content(&from));
    scene.is_clean();
}

#[test]
fn a_file_goes_into_a_directory_or_in_the_place_of_a_file() {
    let scene = Scene::new();
    let one = || vec![file("", 3), bytes(b"new"), Frame::End];
    scene.put("", "x", one()).unwrap();
    scene.put("deep/er/y", "x", one()).unwrap();
    scene.put("deep", "x", one()).unwrap();
    scene.put("/work/deep/z/", "x", one()).unwrap();
    for path in ["x", "deep/er/y", "deep/x", "deep/z/x"] {
        assert_eq!(fs::read(scene.home().join(path)).unwrap(), b"new", "{path}");
    }
    fs::write(scene.home().join("x"), "old and longer").unwrap();
    scene.put("x", "other", one()).unwrap();
    assert_eq!(fs::read(scene.home().join("x")).unwrap(), b"new");
    let gone = scene.put("x/", "y", one());
    assert!(matches!(gone, Err(TreeError::InTheWay(_))), "{gone:?}");
    scene.is_clean();
}

#[test]
fn no_path_leads_out() {
    let scene = Scene::new();
    fs::create_dir(scene.home().join("in")).unwrap();
    for path in ["..", "../secret", "in/../../secret", "/etc/passwd", "/workers", "a\0b", "//etc"] {
        let got = scene.get(path);
        assert!(matches!(got, Err(TreeError::Path(_))), "{path:?}: {got:?}");
        let put = scene.put(path, "x", vec![file("", 0), Frame::End]);
        assert!(matches!(put, Err(TreeError::Path(_))), "{path:?}: {put:?}");
    }
    let long = "a/".repeat(MAX_PATH);
    assert!(matches!(scene.get(&long), Err(TreeError::Path(_))));
    for name in ["", ".", "..", "a/b", "../x", "a\0", &"n".repeat(300)] {
        let put = scene.put("in", name, vec![file("", 0), Frame::End]);
        assert!(matches!(put, Err(TreeError::Path(_))), "{name:?}: {put:?}");
    }
    assert!(matches!(scene.get("nothing"), Err(TreeError::Missing(_))));
    scene.is_clean();
}

#[test]
fn a_link_is_followed_while_it_stays_and_never_out() {
    let scene = Scene::new();
    let home = scene.home();
    fs::create_dir(home.join("ckpt-5")).unwrap();
    fs::write(home.join("ckpt-5/model"), "m").unwrap();
    symlink("ckpt-5", home.join("latest")).unwrap();
    assert_eq!(scene.get("latest/model").unwrap()[1], bytes(b"m"));
    symlink("../secret", home.join("file")).unwrap();
    symlink("..", home.join("dir")).unwrap();
    symlink(scene.temp.path(), home.join("absolute")).unwrap();
    symlink("loop", home.join("loop")).unwrap();
    for path in ["file", "dir", "dir/secret", "absolute/secret", "absolute", "loop"] {
        let got = scene.get(path);
        assert!(matches!(got, Err(TreeError::LeadsOut(_))), "{path}: {got:?}");
    }
    for path in ["file", "dir/new", "absolute/new", "dir", "absolute/"] {
        let put = scene.put(path, "new", vec![file("", 1), bytes(b"x"), Frame::End]);
        assert!(matches!(put, Err(TreeError::LeadsOut(_))), "{path}: {put:?}");
    }
    // What stands at the end is replaced, not written through.
    symlink("ckpt-5/model", home.join("model")).unwrap();
    scene.put("model", "x", vec![file("", 1), bytes(b"x"), Frame::End]).unwrap();
    assert_eq!(fs::read(home.join("model")).unwrap(), b"x");
    assert_eq!(fs::read(home.join("ckpt-5/model")).unwrap(), b"m");
    // On the way through a tree no link is followed.
    let frames = scene.get("").unwrap();
    assert!(frames.contains(&Frame::LeftOut(5)), "{frames:?}");
    scene.is_clean();
}

#[test]
fn a_tree_that_comes_in_does_not_go_through_links() {
    let scene = Scene::new();
    fs::create_dir(scene.home().join("in")).unwrap();
    symlink("../..", scene.home().join("in/out")).unwrap();
    let through = vec![directory(""), file("out/secret", 1), bytes(b"x"), Frame::End];
    let put = scene.put("", "in", through);
    assert!(matches!(put, Err(TreeError::LeadsOut(_) | TreeError::InTheWay(_))), "{put:?}");
    let put = scene.put("", "in", vec![directory(""), directory("out"), Frame::End]);
    assert!(put.is_err(), "{put:?}");
    scene.is_clean();
}

#[test]
fn what_a_hostile_sender_makes_up_is_refused() {
    let scene = Scene::new();
    let bad: [Vec<Frame>; 13] = [
        vec![],
        vec![Frame::End],
        vec![bytes(b"x")],
        vec![file("a", 0), Frame::End],
        vec![file("", 1), Frame::End],
        vec![file("", 1), bytes(b"xy"), Frame::End],
        vec![file("", 0), file("beside", 0), Frame::End],
        vec![directory(""), directory(""), Frame::End],
        vec![directory(""), file("../x", 0), Frame::End],
        vec![directory(""), file("a/../../x", 0), Frame::End],
        vec![directory(""), file("/x", 0), Frame::End],
        vec![directory(""), file("never/told", 0), Frame::End],
        vec![directory(""), file("x", 1), bytes(b"x"), Frame::Exit(0)],
    ];
    for (n, frames) in bad.into_iter().enumerate() {
        let put = scene.put("", &format!("new-{n}"), frames.clone());
        assert!(put.is_err(), "{frames:?}: {put:?}");
    }
    assert!(!scene.home().join("beside").exists() && !scene.home().join("x").exists());
    scene.is_clean();
}

#[test]
fn a_pipe_is_no_file() {
    let scene = Scene::new();
    let mode = nix::sys::stat::Mode::from_bits_truncate(0o600);
    nix::unistd::mkfifo(&scene.home().join("pipe"), mode).unwrap();
    assert!(matches!(scene.get("pipe"), Err(TreeError::Odd(_))));
    assert!(scene.get("").unwrap().contains(&Frame::LeftOut(1)));
}

#[test]
fn what_breaks_off_leaves_nothing_half() {
    let scene = Scene::new();
    fs::write(scene.home().join("model"), "old").unwrap();
    let put = scene.put("model", "model", vec![file("", 10), bytes(b"half")]);
    assert!(matches!(put, Err(TreeError::CutShort)), "{put:?}");
    assert_eq!(fs::read(scene.home().join("model")).unwrap(), b"old");
    scene.is_clean();
}
