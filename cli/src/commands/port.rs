//! `mesh port`: a port of a task, as if it were on this machine.

use std::future::pending;
use std::sync::Arc;

use mesh_node::work::stream::PortRef;
use mesh_node::work::stream::frame::{self, Frame, MAX_BYTES};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::client::{Api, broken};
use crate::context::{Context, note, print, print_item};
use crate::report::{Code, Outcome, Report};
use crate::task::{Task, TaskRef};
use crate::view::clean;

pub(crate) const EXAMPLES: &str = "\
Examples:
  mesh port mnist-cnn tensorboard          prints 127.0.0.1:PORT, and passes connections on
  mesh port mnist-cnn 6006                 the port as the task sees it; the same here, if it is free
  mesh port mnist-cnn.2 http 8080          task 2, and 127.0.0.1:8080 here
  mesh port mnist-cnn http 0               any port that is free here

Only ports that stand in [ports] of the job.toml can be reached, from any node of the job's party.
It goes on until Ctrl-C.";

/// Connections at a time; more wait.
const MAX_CONNECTIONS: usize = 32;
/// How much is read at a time.
const BLOCK: usize = 32 << 10;

/// What `port` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Port {
    /// Of which job; JOB.N for its task N
    #[arg(value_name = "JOB")]
    job: TaskRef,
    /// Its name in [ports], or its number
    #[arg(value_name = "PORT", value_parser = named)]
    port: String,
    /// The port on this machine [default: the same, or any that is free]
    #[arg(value_name = "LOCAL")]
    local: Option<u16>,
    /// Of which task of it [default: the first that runs]
    #[arg(long, value_name = "N")]
    task: Option<u32>,
}

/// A name, or a number from 1 on.
fn named(word: &str) -> Result<String, crate::value::ValueError> {
    match PortRef::parse(word) {
        PortRef::Number(1..) => Ok(word.to_owned()),
        PortRef::Number(0) | PortRef::Name(_) => crate::value::name(word),
    }
}

pub(crate) async fn run(port: &Port, context: &Context) -> Outcome {
    let api = context.api()?;
    let task = port.job.find(&api, port.task).await?;
    if check(&task, &port.port)? == Declared::Perhaps {
        ask(&api, &task, &port.port).await?;
    }
    let listener = listen(port).await?;
    let address = listener.local_addr().map_err(|error| unbound(&error))?;
    if context.json {
        let item = json!({
            "address": address.to_string(), "job": task.job, "task": task.number, "port": port.port,
        });
        print_item(&item)?;
    } else {
        note(&format!("port {} of {}; Ctrl-C ends it", port.port, task.called()));
        print(&format!("{address}\n"))?;
    }
    let path = task.path("port", &[("port", &port.port)]);
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(permit) = room.clone().acquire_owned().await else { return Err(broken("no room")) };
        let connection = match listener.accept().await {
            Ok((connection, _)) => connection,
            // It was gone before it was there.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => continue,
            Err(error) => return Err(unbound(&error)),
        };
        let (api, path) = (api.clone(), path.clone());
        tokio::spawn(async move {
            let _permit = permit;
            if let Err(report) = pass_on(&api, &path, connection).await {
                note(&clean(&format!("{}: {}", report.message, report.cause)));
            }
        });
    }
}

/// Whether a port stands in a job's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Declared {
    Surely,
    /// Its node picks the number of one: it knows.
    Perhaps,
}

/// Whether the job has such a port, as far as its file tells.
fn check(task: &Task, wanted: &str) -> Result<Declared, Report> {
    let ports = || task.groups.iter().filter_map(|group| group["ports"].as_object()).flatten();
    let is_it = |name: &str, port: &Value| match PortRef::parse(wanted) {
        PortRef::Name(wanted) => wanted == name,
        PortRef::Number(wanted) => port.as_u64() == Some(wanted.into()),
    };
    if ports().any(|(name, port)| is_it(name.as_str(), port)) {
        return Ok(Declared::Surely);
    }
    let is_number = matches!(PortRef::parse(wanted), PortRef::Number(_));
    if is_number && ports().any(|(_, port)| port.is_null()) {
        return Ok(Declared::Perhaps);
    }
    let named: Vec<String> = ports()
        .map(|(name, port)| match port.as_u64() {
            Some(port) => format!("{name} ({port})"),
            None => name.clone(),
        })
        .collect();
    let cause = match named.is_empty() {
        true => "there are no [ports] in its file".to_owned(),
        false => format!("it has {}", clean(&named.join(", "))),
    };
    let hint = "name it in [ports] of the job.toml, and submit it again: mesh help job.toml";
    Err(Report::new(Code::NotFound, format!("{} has no port {wanted}", task.called()), cause, hint))
}

/// Asks the task's node for a port of this number, before anybody is told that there is one. That nothing answers there yet is
/// no reason to refuse it.
async fn ask(api: &Api, task: &Task, wanted: &str) -> Result<(), Report> {
    match api.upgrade(&task.path("port", &[("port", wanted)])).await {
        Err(report) if is_undeclared(&report) => {
            let message = format!("{} has no port {wanted}", task.called());
            Err(Report { code: Code::NotFound, message, ..report })
        }
        // Whatever else is wrong is told to those who connect.
        _ => Ok(()),
    }
}

/// Whether a node says that there is no such port: see `work/stream/ports.rs`.
fn is_undeclared(report: &Report) -> bool {
    report.code == Code::Refused && report.cause.starts_with("the job has no ")
}

/// The port that was asked for; else the one that the task has, or any.
async fn listen(port: &Port) -> Result<TcpListener, Report> {
    let bind = |port: u16| TcpListener::bind(("127.0.0.1", port));
    if let Some(local) = port.local {
        return bind(local).await.map_err(|error| unbound(&error));
    }
    if let PortRef::Number(same) = PortRef::parse(&port.port)
        && let Ok(listener) = bind(same).await
    {
        return Ok(listener);
    }
    bind(0).await.map_err(|error| unbound(&error))
}

fn unbound(error: &std::io::Error) -> Report {
    let hint = "name another one, or 0 for any that is free: mesh port JOB PORT LOCAL";
    Report::new(Code::Failed, "nothing can be listened on here", error.to_string(), hint)
}

/// One connection, to its end.
async fn pass_on(api: &Api, path: &str, connection: TcpStream) -> Result<(), Report> {
    let stream = api.upgrade(path).await?;
    let _ = connection.set_nodelay(true);
    let (mut from_here, mut to_here) = connection.into_split();
    let (from_task, mut to_task) = split(stream);
    let mut from_task = BufReader::with_capacity(MAX_BYTES, from_task);
    let up = async {
        let mut block = vec![0; BLOCK];
        loop {
            let read = from_here.read(&mut block).await.unwrap_or(0);
            let frame = match read {
                0 => Frame::End,
                read => Frame::Bytes(block[..read].to_vec().into()),
            };
            let sent = async {
                frame::write(&mut to_task, &frame).await?;
                to_task.flush().await
            };
            if sent.await.is_err() || read == 0 {
                // The other direction ends when it ends.
                return pending::<()>().await;
            }
        }
    };
    let down = async {
        loop {
            match frame::read(&mut from_task).await {
                Ok(Some(Frame::Bytes(bytes))) => {
                    if to_here.write_all(&bytes).await.is_err() {
                        return Ok(());
                    }
                }
                Ok(Some(Frame::End)) => drop(to_here.shutdown().await),
                Ok(Some(Frame::Beat)) => {}
                Ok(Some(Frame::Failed(why))) => return Err(broken(why)),
                Ok(Some(_)) => return Err(broken("it sends what does not belong there")),
                // Both directions have ended.
                Ok(None) => return Ok(()),
                Err(error) => return Err(broken(error.to_string())),
            }
        }
    };
    tokio::select! {
        done = down => done,
        () = up => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_port_of_the_jobs_file_can_be_meant() {
        let groups = vec![json!({ "ports": { "http": 8080, "rpc": null } }), json!({})];
        let mut task = Task { job: "ab".into(), name: "x".into(), number: None, groups };
        for port in ["http", "8080", "rpc"] {
            assert_eq!(check(&task, port).unwrap(), Declared::Surely, "{port}");
        }
        // The node that picked a number for the second knows.
        assert_eq!(check(&task, "40001").unwrap(), Declared::Perhaps);
        let told = |code, cause: &str| is_undeclared(&Report::new(code, "x", cause, "x"));
        assert!(told(Code::Refused, "the job has no port 9999; it has rpc (40002)"));
        assert!(!told(Code::Refused, "nothing answers on port 40002 of the task (rpc)"));
        assert!(!told(Code::Unavailable, "the job has no port 9999"));
        let report = check(&task, "ssh").unwrap_err();
        assert_eq!(report.code, Code::NotFound);
        assert!(report.cause.contains("http (8080)") && report.cause.contains("rpc"), "{report:?}");
        task.groups = vec![json!({ "ports": { "http": 8080 } })];
        assert!(check(&task, "22").is_err());
        task.groups.clear();
        assert!(check(&task, "http").unwrap_err().cause.contains("[ports]"));
    }

    #[test]
    fn a_port_is_a_name_or_a_number() {
        for word in ["http", "6006", "1", "65535"] {
            assert_eq!(named(word).unwrap(), word);
        }
        for word in ["", "-1", "HTTP", "a b", "a/b"] {
            assert!(named(word).is_err(), "{word:?}");
        }
    }
}
