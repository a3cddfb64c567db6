//! What a task leaves behind, and what it has come to so far.
//!
//! An output first becomes a *draft*: a version that is kept for the task, and copied to other nodes like any
//! other. Once enough copies stand, one command says that the task is done and makes the real versions, held by
//! those who hold the drafts. So what a job that is done has made survives the loss of any one node from the
//! start, and of all attempts at a task only one ever makes it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use mesh_consensus::id::{NodeId, VersionId};
use mesh_storage::import::Imported;
use tokio::sync::watch;
use tokio::time::sleep;

use super::Key;
use super::about::About;
use super::agent::{Mine, Told};
use super::attempt::{Stop, write};
use crate::data::push::{Cancel, PushError, Wish};
use crate::executor::launch::is_full;
use crate::handle::Handle;
use crate::job::{JobSpec, Mount};
use crate::state::command::Act;
use crate::state::data::content::MAX_NOTE_BYTES;
use crate::state::data::{Lineage, Note, VersionNew};
use crate::state::jobs::{Exit, Kept, TaskDone, TaskKeep, note};
use crate::state::name::Name;
use crate::state::refusal::Refusal;

/// Of an image's id: `sha256:` and as much as Docker shows.
const IMAGE_ID: usize = 7 + 12;
/// What stands at the end of what was cut.
const CUT: &str = "…";
/// How often a number is tried that somebody else takes first.
const TRIES: usize = 64;

/// The task did what it should: stores what it leaves behind, and tells both.
pub(super) async fn finish(
    handle: &Handle,
    mine: &Mine,
    home: &Path,
    told: &mut watch::Receiver<Told>,
) -> Result<(), Stop> {
    let Key { job, task, fence } = mine.key;
    let mut made = Vec::new();
    // In a gang the first task speaks for all.
    let is_mine = !mine.spec.gang || task == 0;
    let about = About::read(&handle.work.dir(mine.key)).unwrap_or_default();
    let record = record(&mine.spec, task, mine.attempt, about.image_id.as_deref());
    for (name, output) in mine.spec.outputs.iter().filter(|_| is_mine) {
        handle.work.update(mine.key, |here| here.note = format!("storing its output {name}"));
        let path = home.join(&output.path);
        let wish = Wish { note: record.clone(), ..wish(mine, name.clone(), &path) };
        let imported = import(handle, home, &wish, &output.path).await?;
        let draft = named(mine, &format!("{name}.draft"));
        let copies = copied(handle, mine, Kept::Draft(name.clone()), draft, &wish, &imported);
        let holders = tokio::select! {
            holders = copies => holders?,
            gone = until_gone(told) => return Err(gone),
        };
        made.push((name, wish, imported, holders));
    }
    for _ in 0..TRIES {
        let mut outputs = Vec::new();
        for (name, wish, imported, holders) in &made {
            let mut new = draft(handle, wish, imported, outputs.len()).await?;
            new.holders.extend(holders);
            outputs.push(((*name).clone(), new));
        }
        let act: Act = TaskDone { job, task, fence, outputs }.into();
        match write(handle, act).await {
            Ok(()) => return Ok(()),
            Err(Some(Refusal::NumberTaken | Refusal::SealedChanged)) => {}
            // Who held a draft has left meanwhile: the next look shows who still does.
            Err(Some(Refusal::NoSuchMember | Refusal::MayNotHold)) => {
                made.iter_mut().for_each(|(_, _, _, holders)| holders.clear());
            }
            Err(Some(Refusal::Fenced | Refusal::NoSuchJob) | None) => return Err(Stop::Gone),
            Err(Some(refusal)) => return Err(cannot(&refusal.to_string())),
        }
    }
    Err(Stop::Ended(Exit::Unable(note("others take the numbers of its outputs, again and again"))))
}

/// Looks every so often whether the task has written a checkpoint, and keeps it.
pub(super) async fn keep_checkpoints(handle: &Handle, mine: &Mine, home: &Path) {
    let Some(checkpoint) = &mine.spec.checkpoint else { return };
    let every = Duration::from_millis(checkpoint.every_ms.max(1000));
    let mut last = newest(&home.join(&checkpoint.path)).await;
    loop {
        sleep(every).await;
        let now = newest(&home.join(&checkpoint.path)).await;
        if now != last && now.is_some() && keep_checkpoint(handle, mine, home).await {
            last = now;
        }
    }
}

/// Keeps the checkpoint as it is now. What is being written at this moment may be cut: who writes one writes it
/// beside and renames it, as always.
pub(super) async fn keep_checkpoint(handle: &Handle, mine: &Mine, home: &Path) -> bool {
    let Some(checkpoint) = &mine.spec.checkpoint else { return false };
    let path = home.join(&checkpoint.path);
    let Ok(mut entries) = tokio::fs::read_dir(&path).await else { return false };
    if !matches!(entries.next_entry().await, Ok(Some(_))) {
        return false;
    }
    let Some(name) = named(mine, "checkpoint") else { return false };
    let wish = wish(mine, name, &path);
    let Ok(imported) = import(handle, home, &wish, &checkpoint.path).await else { return false };
    let kept = async {
        // The one before it stands until this one would survive the loss of a node.
        let staged = named(mine, "checkpoint.draft");
        let holders = copied(handle, mine, Kept::Staged, staged, &wish, &imported).await?;
        keep(handle, mine, Kept::Checkpoint, &wish, &imported, holders).await
    };
    kept.await.is_ok()
}

/// Keeps something under another name until it has copies elsewhere: who has one.
async fn copied(
    handle: &Handle,
    mine: &Mine,
    what: Kept,
    draft: Option<Name>,
    wish: &Wish,
    imported: &Imported,
) -> Result<Vec<NodeId>, Stop> {
    let alone = handle.roster().members.len() <= 1;
    let Some(draft) = draft.filter(|_| !alone) else { return Ok(Vec::new()) };
    let wish = Wish { name: draft, ..wish.clone() };
    let version = keep(handle, mine, what, &wish, imported, Vec::new()).await?;
    let Some(known) = handle.data.known(version).await else { return Ok(Vec::new()) };
    let (progress, _) = watch::channel(crate::data::push::Progress::default());
    handle.data.wait_for_copies(&known, &progress).await;
    Ok(handle.data.known(version).await.map(|known| known.holders).unwrap_or_default())
}

async fn until_gone(told: &mut watch::Receiver<Told>) -> Stop {
    let gone = told.wait_for(|told| told.gone).await.is_ok();
    if !gone {
        std::future::pending::<()>().await;
    }
    Stop::Gone
}

/// Makes a version that is kept for the task.
async fn keep(
    handle: &Handle,
    mine: &Mine,
    what: Kept,
    wish: &Wish,
    imported: &Imported,
    mut holders: Vec<NodeId>,
) -> Result<VersionId, Stop> {
    let Key { job, task, fence } = mine.key;
    for _ in 0..TRIES {
        let mut new = draft(handle, wish, imported, 0).await?;
        new.holders.extend(&holders);
        let version = new.id;
        let what = what.clone();
        let act: Act = TaskKeep { job, task, fence, what, new }.into();
        match write(handle, act).await {
            Ok(()) => return Ok(version),
            Err(Some(Refusal::NumberTaken | Refusal::SealedChanged)) => {}
            // Who had a copy has left meanwhile.
            Err(Some(Refusal::NoSuchMember | Refusal::MayNotHold)) => holders.clear(),
            Err(Some(Refusal::Fenced | Refusal::NoSuchJob) | None) => return Err(Stop::Gone),
            Err(Some(refusal)) => return Err(cannot(&refusal.to_string())),
        }
    }
    Err(cannot("others take the numbers of what it keeps, again and again"))
}

async fn draft(
    handle: &Handle,
    wish: &Wish,
    imported: &Imported,
    before: usize,
) -> Result<VersionNew, Stop> {
    let drafted = handle.data.draft(wish, imported, before as u64).await;
    drafted.map_err(|error| Stop::Ended(Exit::Unable(note(&error.to_string()))))
}

/// Reads and stores. The task has ended, or writes on; it must not lead the node out of its directory.
async fn import(handle: &Handle, home: &Path, wish: &Wish, shown: &str) -> Result<Imported, Stop> {
    let (home, path) = (home.to_path_buf(), wish.path.clone());
    let real = tokio::task::spawn_blocking(move || {
        let (home, path) = (home.canonicalize()?, path.canonicalize()?);
        Ok::<_, std::io::Error>(path.starts_with(&home).then_some(path))
    });
    let real = match real.await {
        Ok(Ok(Some(real))) => real,
        Ok(Ok(None)) => return Err(cannot(&format!("{shown} leads out of the task's directory"))),
        _ => return Err(cannot(&format!("it did not write {shown}"))),
    };
    let wish = Wish { path: real, ..wish.clone() };
    let cancel = Arc::new(AtomicBool::new(false));
    let _cancel = Cancel(cancel.clone());
    let (progress, _) = watch::channel(crate::data::push::Progress::default());
    let imported = handle.data.import(&wish, &progress, cancel).await;
    imported.map_err(|error| Stop::Ended(unstored(shown, &error)))
}

/// What comes of an output that could not be stored. Another attempt would write as much again.
fn unstored(shown: &str, error: &PushError) -> Exit {
    match error {
        error if is_full(error) => {
            Exit::Cannot(note(&format!("{shown} cannot be stored: no room left on the disk")))
        }
        PushError::Import(error) => {
            let why = crate::data::chain(error);
            Exit::Cannot(note(&format!("{shown} cannot be stored: {why}")))
        }
        error => Exit::Unable(note(&error.to_string())),
    }
}

fn wish(mine: &Mine, name: Name, path: &Path) -> Wish {
    let mut inputs: Vec<VersionId> = mine.spec.data.values().filter_map(Mount::version).collect();
    inputs.extend(mine.spec.code);
    inputs.truncate(crate::state::data::content::MAX_INPUTS);
    Wish {
        path: path.to_path_buf(),
        name,
        visibility: None,
        copies: crate::data::push::COPIES,
        in_place: false,
        follow: false,
        // It lies in the node's own directory itself; its path was looked at.
        apart: None,
        no_wait: false,
        lineage: Lineage::new(inputs, Some(mine.key.job)).unwrap_or_default(),
        note: Note::default(),
    }
}

/// How an output came about, in a line that stays with its version when the job is dropped: what does not stand in its
/// [`Lineage`], which names the job, its code and its data. What does not fit is cut, the environment first.
fn record(spec: &JobSpec, task: u32, attempt: u32, image_id: Option<&str>) -> Note {
    let mut parts = vec![format!("{} task {task} attempt {attempt}", spec.name)];
    let group = spec.group_of(task).map(|(group, _)| group);
    if let Some(image) = group.and_then(|group| group.image.as_ref()) {
        let id = image_id.unwrap_or("of unknown id");
        let short: String = id.chars().take(IMAGE_ID).collect();
        parts.push(format!("image {} {short}", image.name()));
    }
    parts.extend(spec.params.iter().map(|(key, value)| format!("{key}={value}")));
    parts.extend(group.map(|group| format!("ran {}", group.argv.join(" "))));
    parts.extend(spec.env.iter().map(|(key, value)| format!("with {key}={value}")));
    let text = parts.join("; ");
    if text.len() <= MAX_NOTE_BYTES {
        return note(&text);
    }
    let mut end = MAX_NOTE_BYTES - CUT.len();
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    note(&format!("{}{CUT}", &text[..end]))
}

/// A name for something that a task keeps: the job's, cut if need be, and what it is.
fn named(mine: &Mine, what: &str) -> Option<Name> {
    let short: String = mine.spec.name.as_str().chars().take(30).collect();
    let what: String = what.chars().take(32).collect();
    format!("{short}.{what}").parse().ok()
}

fn cannot(text: &str) -> Stop {
    Stop::Ended(Exit::Cannot(note(text)))
}

/// When anything in a directory was written last. `None` if it is empty or not there.
async fn newest(dir: &Path) -> Option<SystemTime> {
    let dir = dir.to_path_buf();
    tokio::task::spawn_blocking(move || newest_in(&dir, 8)).await.ok().flatten()
}

fn newest_in(dir: &Path, depth: usize) -> Option<SystemTime> {
    let entries = std::fs::read_dir(dir).ok()?;
    let times = entries.flatten().filter_map(|entry| {
        let meta = entry.metadata().ok()?;
        match meta.is_dir() {
            true if depth > 0 => newest_in(&entry.path(), depth - 1),
            _ => meta.modified().ok(),
        }
    });
    times.max()
}

#[cfg(test)]
mod tests {
    use mesh_storage::import::ImportError;
    use mesh_storage::store::StoreError;

    use super::*;
    use crate::job::Image;
    use crate::state::jobs::tests::spec;

    #[test]
    fn an_output_says_how_it_came_about_as_far_as_there_is_room() {
        let mut spec = spec("train", 2);
        assert_eq!(record(&spec, 1, 1, None).as_str(), "train task 1 attempt 1; ran true");
        spec.groups[0].image = Some(Image::Named("python:3.12".into()));
        spec.params.insert("lr".parse().unwrap(), "0.1".into());
        spec.env.insert("SEED".into(), "7".into());
        let id = format!("sha256:{}", "ab".repeat(32));
        assert_eq!(
            record(&spec, 0, 3, Some(&id)).as_str(),
            "train task 0 attempt 3; image python:3.12 sha256:abababababab; lr=0.1; ran true; with SEED=7"
        );
        spec.groups[0].argv.push("é".repeat(300));
        let long = record(&spec, 0, 3, Some(&id));
        assert!(long.as_str().len() <= MAX_NOTE_BYTES && long.as_str().ends_with('…'), "{long}");
    }

    #[test]
    fn an_output_for_which_there_is_no_room_is_not_tried_again() {
        let full = StoreError::NoSpace {
            path: "objects/1".into(),
            source: std::io::ErrorKind::StorageFull.into(),
        };
        let exit = unstored("out/", &PushError::Import(ImportError::Store(full)));
        let Exit::Cannot(why) = &exit else { panic!("{exit:?}") };
        assert_eq!(why.to_string(), "out/ cannot be stored: no room left on the disk");
        // Another node may know more.
        assert!(matches!(unstored("out/", &PushError::NotNow), Exit::Unable(_)));
    }
}
