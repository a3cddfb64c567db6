//! `mesh cp`: files out of a task's directory, and into it.

use std::future::pending;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use mesh_node::work::stream::frame::{self, Frame, MAX_BYTES};
use mesh_node::work::stream::tree::{Received, Root, Sink, Source, TreeError};
use serde_json::json;
use tokio::io::{AsyncWriteExt as _, BufReader, split};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::interval;

use super::data::flow::{Bar, Progress, is_wanted};
use crate::client::broken;
use crate::context::{Context, note, print, print_item};
use crate::report::{Code, Outcome, Report};
use crate::task::{Place, Task, TaskRef};
use crate::view::{bytes, clean, count};

pub(crate) const EXAMPLES: &str = "\
Examples:
  mesh cp mnist-cnn:out/model.pt .              from its first task
  mesh cp mnist-cnn.3:out ./out-of-3            a directory, from task 3
  mesh cp ./data.csv mnist-cnn:                 into the task's directory
  mesh cp ./configs mnist-cnn:/work/configs     /work is that directory, too

A path in a task is beneath the directory in which the task starts, and nothing leads out of it.
What ends at a directory that is there goes into it; otherwise it gets that name. Files are replaced,
and each appears when it is whole. Links, pipes and devices are left out.

A job keeps its [output] by itself; mesh data pull brings that, also when the job is over.";

/// Pieces that wait on their way.
const QUEUE_PIECES: usize = 8;
/// How often it is shown how far it is.
const SHOWN: Duration = Duration::from_millis(100);

/// What `cp` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Cp {
    /// What: PATH, or JOB:PATH or JOB.N:PATH in a task
    #[arg(value_name = "FROM")]
    from: Place,
    /// Where to: JOB:PATH, JOB.N:PATH, or PATH
    #[arg(value_name = "TO")]
    to: Place,
}

pub(crate) async fn run(cp: &Cp, context: &Context) -> Outcome {
    let refuse = |message: &str, cause: &str| {
        Err(Report::new(
            Code::Usage,
            message,
            cause,
            "mesh cp JOB:PATH DEST, or mesh cp FILE JOB:PATH",
        ))
    };
    match (&cp.from, &cp.to) {
        (Place::There(task, path), Place::Here(to)) => get(task, path, to, context).await,
        (Place::Here(from), Place::There(task, path)) => put(from, task, path, context).await,
        (Place::Here(_), Place::Here(_)) => {
            refuse("none of the two is in a task", "a path in a task is JOB:PATH")
        }
        (Place::There(..), Place::There(..)) => {
            refuse("both are in a task", "one of the two has to be on this machine")
        }
    }
}

async fn get(task: &TaskRef, path: &str, to: &str, context: &Context) -> Outcome {
    let api = context.api()?;
    let task = task.find(&api, None).await?;
    let (dir, name) = destination(Path::new(to), path, &task)?;
    // Before anything is asked for: so a place that is not there is told at once.
    let root = Root::open(&dir).map_err(|error| unwritten(&error))?;
    let sink = Sink::within(root, &name).map_err(|error| unwritten(&error))?;
    let stream = api.upgrade(&task.path("cp", &[("path", path)])).await?;
    // The other half says that somebody is there.
    let (from, _to) = split(stream);
    let mut from = BufReader::with_capacity(MAX_BYTES, from);
    let (frames, queue) = mpsc::channel(QUEUE_PIECES);
    let (sender, progress) = watch::channel(Received::default());
    let written = spawn_blocking(move || {
        sink.receive(queue, |now| {
            sender.send_replace(*now);
        })
    });
    let moves = async {
        while let Ok(Some(frame)) = frame::read(&mut from).await {
            let is_last = matches!(frame, Frame::End | Frame::Failed(_));
            if frames.send(frame).await.is_err() || is_last {
                break;
            }
        }
        drop(frames);
        finished(written.await)
    };
    let received = attended(context, "fetching", &progress, moves).await?;
    tell(context, &received, &dir.join(&name).display().to_string())
}

/// The directory in which something appears, and what it is called there.
fn destination(to: &Path, path: &str, task: &Task) -> Result<(PathBuf, String), Report> {
    let unfit = |cause: &str| {
        let message = format!("nothing can be copied to {}", to.display());
        Err(Report::new(Code::Failed, message, cause, "name a directory that is there"))
    };
    if to.is_dir() {
        let last = path.rsplit('/').find(|part| !matches!(*part, "" | "."));
        // The whole of a task's directory is called after its job.
        let name = last.map_or_else(|| task.name.clone(), str::to_owned);
        return Ok((to.to_path_buf(), name));
    }
    if to.as_os_str().to_string_lossy().ends_with('/') {
        return unfit("there is no such directory");
    }
    let Some(name) = to.file_name().and_then(|name| name.to_str()) else {
        return unfit("it has no name that can be written");
    };
    let above = match to.parent() {
        Some(above) if !above.as_os_str().is_empty() => above,
        _ => Path::new("."),
    };
    Ok((above.to_path_buf(), name.to_owned()))
}

async fn put(from: &str, task: &TaskRef, path: &str, context: &Context) -> Outcome {
    let source = Source::open(Path::new(from)).map_err(|error| unread(&error))?;
    let name = name_of(Path::new(from))?;
    let api = context.api()?;
    let task = task.find(&api, None).await?;
    let stream = api.upgrade(&task.path("cp", &[("path", path), ("put", &name)])).await?;
    let (sender, progress) = watch::channel(Received::default());
    let moves = send(stream, source, sender);
    let sent = attended(context, "sending", &progress, moves).await?;
    let inside = if path.is_empty() { "its directory" } else { path };
    tell(context, &sent, &format!("{inside} in {}", task.called()))
}

/// Sends a file or directory, and waits until the other side has it.
async fn send(
    stream: TokioIo<Upgraded>,
    source: Source,
    progress: watch::Sender<Received>,
) -> Result<Received, Report> {
    let (mut from, mut to) = split(stream);
    let (frames, mut queue) = mpsc::channel(QUEUE_PIECES);
    let reads = spawn_blocking(move || source.send(&frames));
    let sends = async {
        let mut is_first = true;
        while let Some(frame) = queue.recv().await {
            progress.send_modify(|now| add(now, &frame, std::mem::take(&mut is_first)));
            if frame::write(&mut to, &frame).await.is_err() {
                break;
            }
        }
        // Whoever reads hears that nobody takes it.
        drop(queue);
        let _ = to.flush().await;
        match reads.await {
            // What has become of it is for the other side to say.
            Ok(Ok(()) | Err(TreeError::Gone)) => pending().await,
            Ok(Err(error)) => unread(&error),
            Err(error) => stopped(&error),
        }
    };
    let answered = async {
        loop {
            match frame::read(&mut from).await {
                Ok(Some(Frame::Beat)) => {}
                Ok(Some(Frame::End)) => return Ok(()),
                Ok(Some(Frame::Failed(why))) => return Err(refused(why)),
                Ok(Some(_)) => return Err(broken("it sends what does not belong there")),
                Ok(None) => return Err(broken("it ended before everything was there")),
                Err(error) => return Err(broken(error.to_string())),
            }
        }
    };
    tokio::select! {
        answered = answered => answered?,
        failed = sends => return Err(failed),
    }
    Ok(*progress.borrow())
}

/// Counts what is sent as its reader does.
fn add(sum: &mut Received, frame: &Frame, is_first: bool) {
    match frame {
        Frame::Entry(entry) => {
            sum.files += u64::from(!entry.is_dir);
            if is_first {
                sum.total = Some(entry.bytes).filter(|bytes| *bytes > 0);
            }
        }
        Frame::Bytes(bytes) => sum.bytes += bytes.len() as u64,
        Frame::LeftOut(count) => sum.left_out = *count,
        _ => {}
    }
}

/// Shows how far it is, until it is over.
async fn attended(
    context: &Context,
    phase: &str,
    progress: &watch::Receiver<Received>,
    moves: impl Future<Output = Result<Received, Report>>,
) -> Result<Received, Report> {
    let mut bar = Bar::new(is_wanted(context.json, std::io::stderr().is_terminal()));
    let mut ticks = interval(SHOWN);
    let mut moves = pin!(moves);
    loop {
        tokio::select! {
            moved = &mut moves => return moved,
            _ = ticks.tick() => {
                let now = *progress.borrow();
                bar.show(&Progress {
                    phase: phase.to_owned(),
                    bytes: now.bytes,
                    total_bytes: now.total,
                    files: Some(now.files),
                    ..Progress::default()
                });
            }
        }
    }
}

fn finished(written: Result<Result<Received, TreeError>, JoinError>) -> Result<Received, Report> {
    match written {
        Ok(Ok(received)) => Ok(received),
        Ok(Err(TreeError::Told(why))) => Err(refused(why)),
        Ok(Err(TreeError::CutShort)) => Err(broken("it ended before everything was there")),
        Ok(Err(error)) => Err(unwritten(&error)),
        Err(error) => Err(stopped(&error)),
    }
}

fn tell(context: &Context, moved: &Received, to: &str) -> Outcome {
    let Received { files, bytes: size, left_out, .. } = *moved;
    if context.json {
        let item = json!({ "to": to, "files": files, "bytes": size, "left_out": left_out });
        return print_item(&item);
    }
    let many = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    if left_out > 0 {
        let things = count(many(left_out), "thing");
        note(&format!("{things} left out: links, or neither files nor directories"));
    }
    let text = format!("{}, {}: {to}", count(many(files), "file"), bytes(size));
    print(&format!("{}\n", clean(&text)))
}

/// What a file or directory is called, whatever was typed to name it.
fn name_of(path: &Path) -> Result<String, Report> {
    let whole = match path.file_name() {
        Some(_) => path.to_path_buf(),
        None => path.canonicalize().unwrap_or_else(|_| path.to_path_buf()),
    };
    let name = whole.file_name().and_then(|name| name.to_str()).map(str::to_owned);
    name.ok_or_else(|| {
        let message = format!("{} has no name that can be sent along", path.display());
        Report::new(Code::Failed, message, "it is /, or not UTF-8", "name what is in it")
    })
}

fn chain(error: &TreeError) -> String {
    use std::error::Error as _;
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

fn unread(error: &TreeError) -> Report {
    let code = if matches!(error, TreeError::Missing(_)) { Code::NotFound } else { Code::Failed };
    Report::new(code, "it cannot be copied from here", chain(error), "name what you can read")
}

fn unwritten(error: &TreeError) -> Report {
    let hint = "name a place where you can write; then the same again";
    Report::new(Code::Failed, "it cannot be written here", chain(error), hint)
}

fn refused(why: String) -> Report {
    let hint = "mesh exec JOB -- ls -l shows what is there";
    Report::new(Code::Refused, "it was not copied", why, hint)
}

fn stopped(error: &JoinError) -> Report {
    Report::new(Code::Failed, "it was not copied", error.to_string(), "the same again")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task() -> Task {
        Task { job: "ab".into(), name: "mnist".into(), number: None, groups: Vec::new() }
    }

    #[test]
    fn what_comes_goes_into_a_directory_or_gets_a_name() {
        let temp = tempfile::tempdir().unwrap();
        let to = |tail: &str| temp.path().join(tail);
        let dest = |to: &Path, path: &str| destination(to, path, &task()).unwrap();
        let here = temp.path().to_path_buf();
        assert_eq!(dest(temp.path(), "out/model.pt"), (here.clone(), "model.pt".into()));
        assert_eq!(dest(temp.path(), "out/"), (here.clone(), "out".into()));
        for whole in ["", ".", "./"] {
            assert_eq!(dest(temp.path(), whole), (here.clone(), "mnist".into()), "{whole:?}");
        }
        assert_eq!(dest(&to("new"), "out"), (here, "new".into()));
        assert_eq!(dest(Path::new("new"), "out"), (".".into(), "new".into()));
        assert!(destination(Path::new("/nowhere/at/all/"), "out", &task()).is_err());
    }

    #[test]
    fn what_is_sent_has_a_name() {
        assert_eq!(name_of(Path::new("a/b.csv")).unwrap(), "b.csv");
        assert_eq!(name_of(Path::new("dir/")).unwrap(), "dir");
        assert!(name_of(Path::new("/")).is_err());
    }

    #[test]
    fn what_is_sent_is_counted_as_it_is_received() {
        let entry = |path: &str, is_dir, bytes| {
            Frame::Entry(frame::Entry { path: path.into(), is_dir, mode: 0o644, bytes })
        };
        let mut sum = Received::default();
        add(&mut sum, &entry("", true, 3), true);
        add(&mut sum, &entry("a", false, 3), false);
        add(&mut sum, &Frame::Bytes(b"abc".to_vec().into()), false);
        add(&mut sum, &Frame::LeftOut(2), false);
        assert_eq!(sum, Received { files: 1, bytes: 3, total: Some(3), left_out: 2 });
    }
}
