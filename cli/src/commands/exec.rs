//! `mesh exec`: a further command in a task, as if one sat there.
//!
//! ```text
//!   keys ──► a thread ──► frames ──► the task
//!   screen ◄── a thread ◄── frames ◄── the task
//! ```
//!
//! Reading and writing block, so each has a thread of its own, which ends with the process: a reader who does not come
//! along holds up the task, and not the ears of this command.

use std::future::pending;
use std::io::{self, IsTerminal, Read, Write};
use std::process::ExitCode;

use bytes::Bytes;
use crossterm::terminal;
use mesh_node::executor::session::Size;
use mesh_node::work::stream::frame::{self, Frame, MAX_BYTES};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWriteExt as _, BufReader, split};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};

use super::stopped;
use crate::client::{Api, broken};
use crate::context::{Context, written};
use crate::report::{Code, Outcome, Report};
use crate::task::{Task, TaskRef};

pub(crate) const EXAMPLES: &str = "\
Examples:
  mesh exec mnist-cnn -- nvidia-smi             in its first task
  mesh exec mnist-cnn.3 -- ps aux               in task 3; --task 3 is the same
  mesh exec -it mnist-cnn -- /bin/sh            a shell; Ctrl-C goes to it, exit or Ctrl-D leaves
  tar c data | mesh exec -i mnist-cnn -- tar x  input from here

It runs where the task does, with its rights, limits, directory and environment, from whichever node
of the job's party this is typed. Exits with the command's own code; 127 if there is no such
program, 126 if it cannot be run. Without -t, Ctrl-C ends the command, and exits with 130.";

/// What is read or written at a time.
const BLOCK: usize = 16 << 10;
/// Pieces that wait on either side; then it is waited for their reader.
const QUEUE_PIECES: usize = 8;
/// What a node says of a command that it could not run is shorter.
const MAX_UNRUN: usize = 4096;
/// A window where nobody knows one.
const USUAL: Size = Size { rows: 24, columns: 80 };
/// The longest command that goes along: a request's header has a bound.
const MAX_COMMAND: usize = 20_000;

/// What `exec` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Exec {
    /// In which job; JOB.N for its task N
    #[arg(value_name = "JOB")]
    job: TaskRef,
    /// In which task of it [default: the first that runs]
    #[arg(long, value_name = "N")]
    task: Option<u32>,
    /// How it is connected.
    #[command(flatten)]
    how: How,
    /// What to run
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// How a command is connected with whoever runs it.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct How {
    /// Pass on what is typed, or comes from standard input
    #[arg(long, short)]
    pub(crate) interactive: bool,
    /// Give it a terminal
    #[arg(long, short)]
    pub(crate) tty: bool,
}

pub(crate) async fn run(exec: &Exec, context: &Context) -> Outcome {
    let api = context.api()?;
    let task = exec.job.find(&api, exec.task).await?;
    session(&api, &task, &exec.command, exec.how, context).await
}

/// Runs a command to its end; its exit code.
pub(crate) async fn session(
    api: &Api,
    task: &Task,
    command: &[String],
    how: How,
    context: &Context,
) -> Outcome {
    let path = path(task, command, how.tty.then(window))?;
    let stream = tokio::select! {
        stream = api.upgrade(&path) => stream?,
        () = stopped() => return Err(interrupted(task)),
    };
    let (from, mut to) = split(stream);
    let mut from = BufReader::with_capacity(MAX_BYTES, from);
    let (frames, mut queue) = mpsc::channel(QUEUE_PIECES);
    let raw = Raw::enter(how);
    if how.interactive {
        read_input(frames.clone());
    } else if !how.tty {
        // There is room for it; and if not, nobody is there.
        let _ = frames.try_send(Frame::End);
    }
    let sends = async {
        while let Some(frame) = queue.recv().await {
            let sent = async {
                frame::write(&mut to, &frame).await?;
                to.flush().await
            };
            if sent.await.is_err() {
                break;
            }
        }
        // What has become of the other side is for those who read to say.
        pending::<()>().await;
    };
    let resizes = async {
        if let (true, Ok(mut changes)) = (how.tty, signal(SignalKind::window_change())) {
            while changes.recv().await.is_some() {
                if frames.send(Frame::Window(window())).await.is_err() {
                    break;
                }
            }
        }
        pending::<()>().await;
    };
    let (screen, printed) = printer();
    let mut said = Said::default();
    let ended = tokio::select! {
        ended = follow(&mut from, screen, &mut said) => ended,
        () = sends => Err(broken("it takes nothing more")),
        () = resizes => Err(broken("it takes nothing more")),
        () = stopped() => Err(interrupted(task)),
    };
    let ended = match ended {
        // Everything that came before the end is on the screen before this command ends.
        Ok(code) => match printed.await {
            Ok(Err(error)) => Err(error),
            _ => Ok(code),
        },
        Err(report) => {
            drop(raw);
            return Err(report);
        }
    };
    drop(raw);
    match ended {
        Ok(Some(code)) => {
            if let Some(report) = said.unrun(code).filter(|_| context.json) {
                // It is on standard error already, for people.
                report.show(true);
            }
            Ok(ExitCode::from(code))
        }
        Ok(None) => Ok(ExitCode::SUCCESS),
        Err(error) => written(Err(error)),
    }
}

fn path(task: &Task, command: &[String], size: Option<Size>) -> Result<String, Report> {
    let words = json!(command).to_string();
    let (rows, columns) =
        size.map(|size| (size.rows.to_string(), size.columns.to_string())).unwrap_or_default();
    let mut asked = vec![("command", words.as_str())];
    if size.is_some() {
        asked.extend([("rows", rows.as_str()), ("columns", columns.as_str())]);
    }
    let path = task.path("exec", &asked);
    if path.len() <= MAX_COMMAND {
        return Ok(path);
    }
    Err(Report::new(
        Code::Usage,
        "the command is too long",
        format!("it takes {} bytes, and {MAX_COMMAND} can be sent along", path.len()),
        "pass it on standard input: mesh exec -i JOB -- sh -s < FILE",
    ))
}

/// Passes on what comes, until the end: the exit code, or `None` if nobody reads what is written.
async fn follow(
    from: &mut (impl AsyncRead + Unpin),
    screen: mpsc::Sender<(Where, Bytes)>,
    said: &mut Said,
) -> Result<Option<u8>, Report> {
    loop {
        let (to, bytes) = match frame::read(from).await {
            Ok(Some(Frame::Bytes(bytes))) => (Where::Out, bytes),
            Ok(Some(Frame::Errors(bytes))) => (Where::Err, bytes),
            Ok(Some(Frame::Exit(code))) => return Ok(Some(code)),
            Ok(Some(Frame::Failed(why))) => return Err(failed(why)),
            Ok(Some(Frame::Beat)) => continue,
            Ok(Some(_)) => return Err(broken("it sends what does not belong there")),
            Ok(None) => return Err(broken("it ended before the command did")),
            Err(error) => return Err(broken(error.to_string())),
        };
        said.add(to, &bytes);
        if screen.send((to, bytes)).await.is_err() {
            return Ok(None);
        }
    }
}

/// The beginning of what came, by which a command is known that was never run.
#[derive(Debug, Default)]
struct Said {
    errors: Vec<u8>,
    /// Whether there was more than the three lines could be.
    is_more: bool,
}

impl Said {
    fn add(&mut self, to: Where, bytes: &[u8]) {
        self.is_more |= to == Where::Out || self.errors.len() + bytes.len() > MAX_UNRUN;
        if !self.is_more {
            self.errors.extend_from_slice(bytes);
        }
    }

    /// What the node said instead of running the command: three lines, and a shell's code for that.
    fn unrun(&self, code: u8) -> Option<Report> {
        let text = std::str::from_utf8(&self.errors).ok()?;
        let mut lines = text.lines().filter(|_| !self.is_more && matches!(code, 126 | 127));
        let mut next = |word: &str| Some(lines.next()?.strip_prefix(word)?.trim().to_owned());
        let (message, cause, hint) = (next("error:")?, next("cause:")?, next("try:")?);
        let kind = if code == 127 { Code::NotFound } else { Code::Failed };
        Some(Report::new(kind, message, cause, hint))
    }
}

/// Where something is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Where {
    Out,
    Err,
}

/// A thread that writes. It ends when nothing more can come, or when nobody reads, and then says how it went.
fn printer() -> (mpsc::Sender<(Where, Bytes)>, oneshot::Receiver<io::Result<()>>) {
    let (sender, mut queue) = mpsc::channel::<(Where, Bytes)>(QUEUE_PIECES);
    let (done, is_done) = oneshot::channel();
    std::thread::spawn(move || {
        let mut print = || -> io::Result<()> {
            while let Some((to, bytes)) = queue.blocking_recv() {
                match to {
                    Where::Out => show(&mut io::stdout().lock(), &bytes)?,
                    Where::Err => show(&mut io::stderr().lock(), &bytes)?,
                }
            }
            Ok(())
        };
        let printed = print();
        drop(queue);
        // Whoever waits for it may have gone.
        let _ = done.send(printed);
    });
    (sender, is_done)
}

fn show(to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}

/// A thread that reads what is typed, until its end.
fn read_input(frames: mpsc::Sender<Frame>) {
    std::thread::spawn(move || {
        let mut input = io::stdin().lock();
        let mut block = vec![0; BLOCK];
        loop {
            let frame = match input.read(&mut block) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Ok(0) | Err(_) => Frame::End,
                Ok(read) => Frame::Bytes(block[..read].to_vec().into()),
            };
            let is_last = frame == Frame::End;
            if frames.blocking_send(frame).is_err() || is_last {
                return;
            }
        }
    });
}

/// The terminal in raw mode: every key goes to the task. It is given back when this is dropped, whatever happens.
struct Raw;

impl Raw {
    /// If there is a terminal to be had, and it is wanted.
    fn enter(how: How) -> Option<Self> {
        let is_wanted = how.tty && how.interactive && io::stdin().is_terminal();
        (is_wanted && terminal::enable_raw_mode().is_ok()).then_some(Self)
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // Nothing is to be done where it fails.
        let _ = terminal::disable_raw_mode();
    }
}

/// How large the window is.
fn window() -> Size {
    match terminal::size() {
        Ok((columns, rows)) if columns > 0 && rows > 0 => Size { rows, columns },
        _ => USUAL,
    }
}

fn failed(why: String) -> Report {
    Report::new(Code::Failed, "the command broke off", why, "mesh job show JOB tells how it is")
}

fn interrupted(task: &Task) -> Report {
    Report::new(
        Code::Interrupted,
        "interrupted",
        format!("the command in {} was not at its end", task.called()),
        "the same command again; -it passes Ctrl-C on",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    type Shown = Vec<(Where, Bytes)>;

    fn read(frames: &[Frame]) -> (Result<Option<u8>, Report>, Shown) {
        let wire: Vec<u8> = frames.iter().flat_map(Frame::encode).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (screen, mut shown) = mpsc::channel(16);
            let ended = follow(&mut &wire[..], screen, &mut Said::default()).await;
            let mut pieces = Vec::new();
            while let Some(piece) = shown.recv().await {
                pieces.push(piece);
            }
            (ended, pieces)
        })
    }

    #[test]
    fn output_goes_where_it_was_written_and_the_code_is_the_commands() {
        let (out, err) = (Bytes::from_static(b"out"), Bytes::from_static(b"err"));
        let (ended, shown) = read(&[
            Frame::Bytes(out.clone()),
            Frame::Beat,
            Frame::Errors(err.clone()),
            Frame::Exit(7),
        ]);
        assert_eq!(ended.unwrap(), Some(7));
        assert_eq!(shown, [(Where::Out, out), (Where::Err, err)]);
    }

    #[test]
    fn a_command_that_was_never_run_is_known_by_three_lines_and_its_code() {
        let lines =
            b"error: there is no program \"x\" there\ncause: No such file\ntry:   /bin/sh\n";
        let mut said = Said::default();
        said.add(Where::Err, &lines[..20]);
        said.add(Where::Err, &lines[20..]);
        let report = said.unrun(127).unwrap();
        assert_eq!((report.code, report.hint.as_str()), (Code::NotFound, "/bin/sh"));
        assert_eq!(report.message, "there is no program \"x\" there");
        assert_eq!(said.unrun(126).unwrap().code, Code::Failed);
        // A command's own words, and its own code.
        assert_eq!(said.unrun(1), None);
        said.add(Where::Out, b"x");
        assert_eq!(said.unrun(127), None);
        let mut other = Said::default();
        other.add(Where::Err, b"sh: x: not found\n");
        assert_eq!(other.unrun(127), None);
    }

    #[test]
    fn an_end_without_a_code_is_a_failure() {
        assert_eq!(read(&[]).0.unwrap_err().code, Code::Unavailable);
        let told = read(&[Frame::Failed("the task has ended".into())]).0.unwrap_err();
        assert_eq!((told.code, told.cause.as_str()), (Code::Failed, "the task has ended"));
        assert!(read(&[Frame::Ready]).0.is_err());
    }

    #[test]
    fn a_command_that_is_too_long_is_told_before_it_is_sent() {
        let task = Task { job: "ab".into(), name: "x".into(), number: None, groups: vec![] };
        let words = |word: &str| vec!["sh".to_owned(), "-c".to_owned(), word.to_owned()];
        let fine = path(&task, &words("echo"), Some(USUAL)).unwrap();
        assert!(fine.ends_with("&rows=24&columns=80"), "{fine}");
        let long = path(&task, &words(&"x".repeat(MAX_COMMAND)), None).unwrap_err();
        assert_eq!(long.code, Code::Usage);
    }
}
