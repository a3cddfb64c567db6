//! One attempt at a task, from its assignment to the word about its end.
//!
//! ```text
//!  room ─► fetch ─► gang ─► start ─► wait ──────────────► outputs ─► TaskDone
//!    │       │        │       │        │ asked to end: TERM, grace, KILL ─► Ended
//!    └───────┴────────┴───────┴────────┴ not ours any more: KILL, no word
//! ```
//!
//! Beside `wait` the worker's socket is served (`training/socket.rs`). An attempt of a job that trains ends when the training
//! does: told to, or stopped a while later.
//!
//! After a restart of the node, an attempt that was started goes on at `wait`: its executor finds it by its
//! directory. One that was not goes through all of it again.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use mesh_consensus::id::NodeId;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::about::About;
use super::agent::{Mine, Told};
use super::desk::Desk;
use super::environment::{self, Places, environment};
use super::fetch::{self, Rooms};
use super::{disk, meeting, outputs};
use crate::clock;
use crate::executor::log::Rotation;
use crate::executor::{self, Attempt, Bind, Launch, Limits, Network, Port, StartError};
use crate::handle::{Ask, Handle, WriteError};
use crate::job::spec::OWN_BINARY;
use crate::job::{Allotment, Group};
use crate::seal::{SecretSpot, open_secret};
use crate::state::command::Act;
use crate::state::jobs::{Exit, News, TaskNews, note};
use crate::state::refusal::Refusal;
use crate::training::participant::{Over, is_over};
use crate::training::socket::Part;

/// Between two tries to tell the mesh something.
const AGAIN: Duration = Duration::from_millis(500);
/// How often it is looked whether others have made room.
const ROOM: Duration = Duration::from_millis(500);
/// How long a worker may take to end of itself once training is over. Then it is asked to.
const LINGER: Duration = Duration::from_secs(10);
/// Processes that a task may have.
const MAX_PROCESSES: u32 = 4096;
/// The program that a process runs, whatever its file is called and even if that was replaced since.
const SELF: &str = "/proc/self/exe";

/// Why an attempt does not get as far as an end of its own.
pub(super) enum Stop {
    /// It is not this node's any more.
    Gone,
    /// It ended like this.
    Ended(Exit),
}

/// Does all of it.
pub(super) async fn run(handle: &Handle, mine: Mine, mut told: watch::Receiver<Told>) {
    let key = mine.key;
    let dir = handle.work.dir(key);
    handle.work.enter(key, mine.allotment.clone());
    if let Err(Stop::Ended(exit)) = whole(handle, &mine, &dir, &mut told).await {
        tracing::info!(%key, exit = exit.text(), "an attempt has ended");
        tell(handle, &mine, News::Ended(exit)).await;
    }
    clear(&dir).await;
    handle.work.leave(key);
}

/// Drops what the task had; what it printed and measured stays.
pub(super) async fn clear(dir: &Path) {
    let dir = dir.to_path_buf();
    let cleared = tokio::task::spawn_blocking(move || {
        if let Some(desk) = Desk::find(&dir) {
            desk.remove(&dir);
        }
        for room in ["task", "tmp"] {
            remove(&dir.join(room));
        }
    });
    let _ = cleared.await;
}

/// Removes a directory, whatever is in there.
pub(super) fn remove(dir: &Path) {
    if std::fs::remove_dir_all(dir).is_err() && dir.exists() {
        make_writable(dir);
        let _ = std::fs::remove_dir_all(dir);
    }
}

/// Data that was laid out is read-only, its directories as well; and a task may have made some.
fn make_writable(dir: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    let _ = std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700));
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            make_writable(&entry.path());
        }
    }
}

async fn whole(
    handle: &Handle,
    mine: &Mine,
    dir: &Path,
    told: &mut watch::Receiver<Told>,
) -> Result<(), Stop> {
    let rooms = Rooms::of(dir);
    let attached = handle.executor.attach(dir).await.unwrap_or_else(|error| {
        tracing::warn!(key = %mine.key, %error, "an attempt could not be found again");
        None
    });
    let (attempt, meeting) = match attached {
        Some(attempt) => {
            handle.work.update(mine.key, |here| here.runs = true);
            (attempt, meeting::again(mine, dir))
        }
        None => {
            let begun = tokio::select! {
                biased;
                stop = until_stopped(told.clone()) => Err(stop),
                begun = begin(handle, mine, dir, &rooms, told.clone()) => begun,
            };
            begun.map(|(attempt, desk, listener)| (attempt, Some((desk, listener))))?
        }
    };
    let meeting = match meeting {
        Some((desk, listener)) => Some((meeting::worker(handle, mine, dir, &desk).await, listener)),
        None => None,
    };
    let worker = meeting.as_ref().map(|(worker, _)| worker.clone());
    let part = worker.as_ref().and_then(|worker| worker.part());
    handle.work.update(mine.key, |here| here.attempt = Some(attempt.clone()));
    let running = tell(handle, mine, News::Running);
    let watched = watch_over(handle, mine, dir, &attempt, told, part);
    let served = async {
        if let Some((worker, listener)) = meeting {
            worker.run(handle, listener).await;
        }
        std::future::pending::<Result<Exit, Stop>>().await
    };
    let exit = tokio::select! {
        // Nobody waits for the word that it runs.
        (_, exit) = async { tokio::join!(running, watched) } => exit,
        exit = served => exit,
    };
    let is_asked = told.borrow().ending.is_some();
    let outcome = match (exit?, &mine.spec.training) {
        (exit, Some(_)) => meeting::trained(exit, is_asked, is_over(handle, mine.key).await),
        (Exit::Code(0), None) if !is_asked => Ok(()),
        (exit, None) => Err(exit),
    };
    match outcome {
        Ok(()) => outputs::finish(handle, mine, &rooms.home, told).await,
        Err(exit) => Err(Stop::Ended(exit)),
    }
}

/// Everything before it runs.
async fn begin(
    handle: &Handle,
    mine: &Mine,
    dir: &Path,
    rooms: &Rooms,
    told: watch::Receiver<Told>,
) -> Result<(Attempt, Desk, UnixListener), Stop> {
    let say = |text: &str| handle.work.update(mine.key, |here| here.note = text.to_owned());
    if !takes(handle, mine).await {
        let why = match mine.spec.training {
            Some(_) => "this node does not train for the job's party",
            None => "this node takes its own party's work only",
        };
        return Err(Stop::Ended(Exit::Unable(note(why))));
    }
    let whole = whole_machine(handle);
    while !handle.work.take_room(mine.key, &whole) {
        say("waiting for others to make room");
        tokio::select! {
            () = handle.work.ended.notified() => {}
            () = sleep(ROOM) => {}
        }
    }
    say("");
    let (group, _) = mine
        .spec
        .group_of(mine.key.task)
        .or_else(|| Some((mine.spec.groups.first()?, mine.key.task)))
        .ok_or_else(|| Stop::Ended(Exit::Cannot(note("there is no such task"))))?;
    let fetching = async {
        let told = async {
            if fetch::is_needed(mine) {
                tell(handle, mine, News::Fetching).await;
            }
        };
        let fetched = async {
            fetch::fetch(handle, mine, rooms).await?;
            match &group.image {
                Some(image) => fetch::image(handle, mine.key, image).await.map(Some),
                None => Ok(None),
            }
        };
        tokio::join!(told, fetched).1
    };
    let image = fetching.await.map_err(Stop::Ended)?;
    write_about(handle, mine, dir, image.as_deref()).await;
    let secrets = open_secrets(handle, mine).await.map_err(Stop::Ended)?;
    let (own, gang) = gather(handle, mine, told, &say).await?;
    say("starting");

    let in_container = image.is_some();
    let has_own_root = in_container || handle.executor.capabilities().mounts;
    let mut places = match has_own_root {
        true => Places {
            work: executor::launch::WORK.into(),
            data: "/data".into(),
            tmp: "/tmp".into(),
            ..Places::default()
        },
        false => {
            let text = |path: &Path| path.display().to_string();
            let (work, data, tmp) = (text(&rooms.home), text(&rooms.data), text(&rooms.tmp));
            Places { work, data, tmp, ..Places::default() }
        }
    };
    let (desk, python) =
        meeting::prepare(handle, mine, dir, !has_own_root).await.map_err(Stop::Ended)?;
    desk.tell(&mut places, &python, !has_own_root);
    // Before the task is there: so it is the task's own, and there, when that begins.
    let listener = desk.bind().map_err(|error| {
        Stop::Ended(Exit::Unable(note(&format!("its socket could not be opened: {error}"))))
    })?;
    let ports = pick_ports(group, own).map_err(Stop::Ended)?;
    let interface = own.and_then(|at| interface_of(at.ip()));
    let roster = handle.roster();
    let node = roster.members.get(&handle.whoami.node).map(|place| place.name.to_string());
    let shown: BTreeMap<String, u16> = ports
        .iter()
        .map(|port| (port.name.clone(), if in_container { port.inside } else { port.outside }))
        .collect();
    let mut env = environment(
        &environment::Told {
            job: mine.key.job,
            spec: &mine.spec,
            task: mine.key.task,
            tasks: mine.tasks,
            attempt: mine.attempt,
            fence: mine.key.fence,
            node: node.as_deref().unwrap_or_default(),
            allotment: &mine.allotment,
            ports: &shown,
            gang: &gang,
            interface: interface.as_deref(),
        },
        &places,
    );
    env.extend(secrets);
    let mut mounts = Vec::new();
    if has_own_root {
        mounts.push(Bind { from: rooms.data.clone(), to: "/data".into(), read_only: true });
    }
    if has_own_root || handle.executor.capabilities().users {
        mounts.extend(desk.mounts(&python, !has_own_root));
    }
    let Allotment { cpu_milli, memory_bytes, gpus, .. } = &mine.allotment;
    let resources = &group.resources;
    let launch = Launch {
        dir: dir.to_path_buf(),
        name: format!("mesh-{}", mine.key),
        argv: argv(group, in_container).map_err(Stop::Ended)?,
        env,
        work: rooms.home.clone(),
        mounts,
        image,
        limits: Limits {
            // Who named no number is held to none, and gets its share where others want theirs.
            cpu_milli: resources.cpu_milli.map(|_| *cpu_milli),
            cpu_weight_milli: *cpu_milli,
            memory_bytes: resources.memory_bytes.map(|_| *memory_bytes),
            pids: MAX_PROCESSES,
            shm_bytes: resources.shm_bytes,
        },
        gpus: gpus.iter().map(environment::uuid).collect(),
        ports,
        // Tasks of a gang find one another. Docker has few networks to give.
        network: match gang.is_empty() {
            true => Network::Apart,
            false => Network::Shared(format!("mesh-{}", mine.key.job.short())),
        },
        grace_ms: mine.spec.grace_ms,
        time_limit_ms: mine.spec.time_limit_ms,
        log: Rotation::default(),
    };
    let started = handle.executor.start(launch).await;
    let attempt = started.map_err(|error| {
        let text = note(&crate::data::chain(&error));
        Stop::Ended(match error {
            StartError::Flaw(_) | StartError::Refused(_) | StartError::Docker(_) => {
                Exit::Cannot(text)
            }
            StartError::NoDocker | StartError::Io { .. } | StartError::Dir(_) => Exit::Unable(text),
        })
    })?;
    Ok((attempt, desk, listener))
}

/// Writes down what is known of the attempt, for those who ask later.
async fn write_about(handle: &Handle, mine: &Mine, dir: &Path, image: Option<&str>) {
    let image_id = match image {
        Some(name) => image_id(handle, name).await,
        None => None,
    };
    let about = About { fence: mine.key.fence, attempt: mine.attempt, image_id };
    let dir = dir.to_path_buf();
    let written = tokio::task::spawn_blocking(move || about.write(&dir));
    if let Ok(Err(error)) = written.await {
        tracing::debug!(key = %mine.key, %error, "what is known of an attempt was not written down");
    }
}

/// An image as Docker identifies it.
async fn image_id(handle: &Handle, name: &str) -> Option<String> {
    let docker = handle.executor.docker().await?;
    docker.image(name).await.ok().flatten().map(|image| image.id)
}

/// Whether this node takes the task: work of the job's party, or training for it. The leader's word is not enough.
async fn takes(handle: &Handle, mine: &Mine) -> bool {
    let (me, party, task, spec) =
        (handle.whoami.node, mine.party, mine.key.task, mine.spec.clone());
    let look = handle.look(move |see| see.replica.machine().takes_task(me, party, &spec, task));
    look.await.unwrap_or(false)
}

/// The command of a task, with the node's own program where it stands for it.
fn argv(group: &Group, in_container: bool) -> Result<Vec<String>, Exit> {
    let mut argv = group.argv.clone();
    if let Some(program) = argv.first_mut().filter(|program| program.as_str() == OWN_BINARY) {
        if in_container {
            return Err(Exit::Cannot(note("mesh itself runs in no image")));
        }
        // The supervisor that starts it is the same program, and this leads to it as any user and in any root.
        *program = SELF.to_owned();
    }
    Ok(argv)
}

/// The secrets of a job, for the environment of its tasks.
async fn open_secrets(handle: &Handle, mine: &Mine) -> Result<BTreeMap<String, String>, Exit> {
    if mine.spec.secrets.is_empty() {
        return Ok(BTreeMap::new());
    }
    let secret = handle.data.sealing_secret().await;
    let secret = secret.ok_or_else(|| {
        Exit::Unable(note("this node does not have its party's sealing secret yet"))
    })?;
    let (mesh, party, job) = (handle.whoami.mesh, mine.party, mine.key.job);
    let open = |(variable, sealed): (&String, &crate::job::SealedSecret)| {
        let value = open_secret(sealed, &secret, &SecretSpot { mesh, party, job, variable })?;
        Some((variable.clone(), String::from_utf8(value.to_vec()).ok()?))
    };
    let opened: Option<BTreeMap<String, String>> = mine.spec.secrets.iter().map(open).collect();
    opened.ok_or_else(|| Exit::Cannot(note("its secrets were not sealed for it")))
}

/// Tells where this task of a gang can be found, and waits until all have.
async fn gather(
    handle: &Handle,
    mine: &Mine,
    mut told: watch::Receiver<Told>,
    say: &impl Fn(&str),
) -> Result<(Option<SocketAddr>, Vec<(NodeId, SocketAddr)>), Stop> {
    if told.borrow().gang.is_empty() {
        return Ok((None, Vec::new()));
    }
    let here = handle.hub.here();
    let ip = here.iter().map(SocketAddr::ip).find(|ip| !ip.is_unspecified());
    let ip = ip.unwrap_or(IpAddr::from([127, 0, 0, 1]));
    let port = free_port(ip)
        .ok_or_else(|| Stop::Ended(Exit::Unable(note("this node has no port to spare"))))?;
    let endpoint = SocketAddr::new(ip, port);
    if !tell(handle, mine, News::Ready { endpoint }).await {
        return Err(Stop::Gone);
    }
    say("waiting for the rest of its gang");
    loop {
        let gang = told.borrow_and_update().gang.clone();
        let all: Option<Vec<(NodeId, SocketAddr)>> =
            gang.iter().map(|(node, at)| at.map(|at| (*node, at))).collect();
        if let Some(all) = all.filter(|all| !all.is_empty()) {
            return Ok((Some(endpoint), all));
        }
        if told.changed().await.is_err() {
            return Err(Stop::Gone);
        }
    }
}

/// Waits for the end, brings it about if it is asked for or training is over, and keeps checkpoints meanwhile.
async fn watch_over(
    handle: &Handle,
    mine: &Mine,
    dir: &Path,
    attempt: &Attempt,
    told: &mut watch::Receiver<Told>,
    part: Option<&Part>,
) -> Result<Exit, Stop> {
    let grace = Duration::from_millis(mine.spec.grace_ms);
    let rooms = Rooms::of(dir);
    let home = &rooms.home;
    let keep = outputs::keep_checkpoints(handle, mine, home);
    tokio::pin!(keep);
    let over_disk = disk::until_over(&rooms, mine.allotment.disk_bytes);
    tokio::pin!(over_disk);
    let mut greedy: Option<Exit> = None;
    let ended = attempt.wait();
    tokio::pin!(ended);
    let trained = async {
        if let Some(part) = part
            && part.over().await == Over::Trained
        {
            return sleep(LINGER).await;
        }
        // Who is asked to stop hears of it otherwise.
        std::future::pending().await
    };
    tokio::pin!(trained);
    let mut has_lingered = false;
    let mut asked: Option<Instant> = None;
    let mut keeping = mine.spec.checkpoint.is_some();
    let exit = loop {
        let (gone, ending) = {
            let told = told.borrow_and_update();
            (told.gone, told.ending)
        };
        if gone {
            let _ = attempt.kill().await;
            ended.await;
            return Err(Stop::Gone);
        }
        if ending.is_some() && asked.is_none() {
            asked = Some(Instant::now() + grace);
            tell_end(dir, clock::date(clock::now().after(grace))).await;
            let _ = attempt.stop(grace).await;
        }
        tokio::select! {
            ended = &mut ended => break ended.exit,
            changed = told.changed() => {
                if changed.is_err() {
                    // The node stops; the attempt goes on.
                    std::future::pending::<()>().await;
                }
            }
            () = &mut keep, if keeping => keeping = false,
            () = &mut trained, if !has_lingered => {
                has_lingered = true;
                let _ = attempt.stop(grace).await;
            }
            exit = &mut over_disk, if greedy.is_none() => {
                greedy = Some(exit);
                let _ = attempt.kill().await;
            }
            () = sleep_until(asked.unwrap_or_else(Instant::now)), if asked.is_some() => {
                // The executor has its own clock for this; to be sure.
                let _ = attempt.kill().await;
                asked = Some(Instant::now() + grace.max(Duration::from_secs(5)));
            }
        }
    };
    // What it had is free, though there is still something to be stored.
    handle.work.let_go(mine.key);
    let was_asked = asked.is_some();
    if was_asked {
        // The last state counts: that is what the grace is for.
        outputs::keep_checkpoint(handle, mine, home).await;
    }
    if let Some(exit) = greedy {
        return Ok(exit);
    }
    Ok(match exit {
        executor::Exit::Code(code) if !was_asked || code != 0 => Exit::Code(code),
        executor::Exit::Code(_) => Exit::Stopped,
        executor::Exit::Signal(_) if was_asked => Exit::Stopped,
        executor::Exit::Signal(signal) => Exit::Signal(signal),
        executor::Exit::Memory => Exit::Memory,
        executor::Exit::Time => Exit::Time,
        executor::Exit::Stopped { .. } => Exit::Stopped,
        executor::Exit::Lost(why) => Exit::Unable(note(&why)),
        executor::Exit::CannotStart(why) => Exit::Cannot(note(&why)),
    })
}

/// Tells the task by when it has to have ended, before it gets its TERM. Without that word it ends all the same.
async fn tell_end(dir: &Path, at: String) {
    let dir = dir.to_path_buf();
    let told = tokio::task::spawn_blocking(move || match Desk::find(&dir) {
        Some(desk) => desk.tell_end(&at),
        None => Ok(()),
    });
    if let Ok(Err(error)) = told.await {
        tracing::debug!(%error, "a task could not be told by when it has to end");
    }
}

/// Returns once the attempt is not to go on, while it has not been started.
async fn until_stopped(mut told: watch::Receiver<Told>) -> Stop {
    loop {
        {
            let told = told.borrow_and_update();
            if told.gone {
                return Stop::Gone;
            }
            if told.ending.is_some() {
                return Stop::Ended(Exit::Stopped);
            }
        }
        if told.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Tells the mesh, for as long as it takes. False if the attempt does not count any more.
pub(super) async fn tell(handle: &Handle, mine: &Mine, news: News) -> bool {
    let super::Key { job, task, fence } = mine.key;
    let act: Act = TaskNews { job, task, fence, news }.into();
    write(handle, act).await.is_ok()
}

/// Writes, for as long as it takes. The state's no is final.
pub(super) async fn write(handle: &Handle, act: Act) -> Result<(), Option<Refusal>> {
    loop {
        match handle.write(vec![Ask { act: act.clone(), signed: false }]).await {
            Ok(_) => return Ok(()),
            // It was further already: said twice.
            Err(WriteError::Refused { refusal: Refusal::StaleNews, .. }) => return Ok(()),
            Err(WriteError::Refused { refusal, .. }) => return Err(Some(refusal)),
            Err(WriteError::Removed { .. } | WriteError::Unknown(_)) => return Err(None),
            Err(_) => sleep(AGAIN).await,
        }
    }
}

/// All that tasks can have here.
fn whole_machine(handle: &Handle) -> Allotment {
    let me = handle.whoami.node;
    let look = handle.hub.look(|view, now| view.get(me, now).map(|seen| seen.record.facts.clone()));
    match look {
        Some(facts) => Allotment {
            cpu_milli: u64::from(facts.cpus) * 1000,
            memory_bytes: facts.memory_bytes,
            ..Allotment::default()
        },
        None => Allotment { cpu_milli: u64::MAX, memory_bytes: u64::MAX, ..Allotment::default() },
    }
}

/// The ports of a task, as it sees them and as this machine does.
fn pick_ports(group: &Group, own: Option<SocketAddr>) -> Result<Vec<Port>, Exit> {
    let ip = own.map_or(IpAddr::from([127, 0, 0, 1]), |at| at.ip());
    let pick = |(name, wanted): (&crate::state::name::Name, &Option<u16>)| {
        let free = free_port(ip);
        let (inside, outside) = match (*wanted, group.image.is_some()) {
            (Some(port), true) => (Some(port), free),
            (Some(port), false) => (Some(port), Some(port)),
            (None, _) => (free, free),
        };
        let both = inside.zip(outside);
        let (inside, outside) =
            both.ok_or_else(|| Exit::Unable(note("this node has no port to spare")))?;
        Ok(Port { name: name.to_string(), inside, outside })
    };
    group.ports.iter().map(pick).collect()
}

/// A port that nobody has at this moment.
fn free_port(ip: IpAddr) -> Option<u16> {
    let listener = std::net::TcpListener::bind((ip, 0)).ok()?;
    Some(listener.local_addr().ok()?.port())
}

/// The network interface that has this address.
fn interface_of(ip: IpAddr) -> Option<String> {
    let all = if_addrs::get_if_addrs().ok()?;
    all.into_iter().find(|one| one.ip() == ip).map(|one| one.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::jobs::tests::spec;

    #[test]
    fn the_nodes_own_program_is_named_by_where_it_runs() {
        let mut group = spec("train", 1).groups[0].clone();
        assert_eq!(argv(&group, true).ok().as_deref(), Some(&["true".to_owned()][..]));
        group.argv = [OWN_BINARY, "train", "mlp"].map(str::to_owned).to_vec();
        let found = argv(&group, false).unwrap();
        assert_eq!(found, ["/proc/self/exe", "train", "mlp"]);
        assert!(matches!(argv(&group, true), Err(Exit::Cannot(_))));
    }
}
