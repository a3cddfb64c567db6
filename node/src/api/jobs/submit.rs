//! `POST /v1/jobs`: makes a job of a job.toml.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use bytes::Bytes;
use mesh_consensus::id::{JobId, PartyId, VersionId};
use serde::Deserialize;
use serde_json::json;
use tokio::runtime;
use tokio::sync::watch;

use super::super::Api;
use super::super::answer::{Answer, Param, Problem, body, has_state, item, unwritten};
use super::super::data::{check_apart, check_local, check_path, own_apart, unpushed};
use super::super::guard::OverSocket;
use super::super::route::{Route, field};
use super::{check_own, find_job, shown};
use crate::data::catalogue::{EACH, Visibility};
use crate::data::push::{COPIES, Cancel, Wish};
use crate::handle::{Ask, WriteError};
use crate::job::file::{FileError, Given, JobFile, Lookup, NotFound, SecretValue, SettleError};
use crate::job::training::Training;
use crate::job::{Image, JobSpec, Mount, SealedSecret, Source};
use crate::party::SealingSecret;
use crate::planner;
use crate::seal::{SecretSpot, open_secret, seal_secret};
use crate::state::command::JobSubmit;
use crate::state::data::{DataRef, Lineage, Note};
use crate::state::name::Name;
use crate::state::refusal::Refusal;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::post("/v1/jobs", "Submits a job.", submit).body([
            field("file", "string", "The job.toml."),
            field("set", "object", "Values of its parameters."),
            field("secrets", "object", "Values of its secrets that are not in the file."),
            field("code_dir", "string", "The directory of its code, from the root."),
            field("user", "string", "Who submits it, for people."),
            field("id", "string", "Its id, so that it can be sent again: random if left out."),
            field("plan", "boolean", "Only say what would come of it."),
        ]),
        Route::post("/v1/jobs/{job}/retry", "Submits a job that is over once more.", retry),
        Route::get("/v1/jobs/{job}/explain", "Why a job is where it is, or nowhere.", explain),
    ]
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Wants {
    file: String,
    set: BTreeMap<String, String>,
    secrets: BTreeMap<String, String>,
    code_dir: Option<PathBuf>,
    user: String,
    id: Option<JobId>,
    plan: bool,
}

async fn submit(
    State(api): State<Api>,
    Extension(local): Extension<OverSocket>,
    bytes: Bytes,
) -> Answer {
    let wants: Wants = body(&bytes)?;
    has_state(&api)?;
    if api.is_removed() {
        return Err(Problem::removed());
    }
    let file = JobFile::parse(&wants.file).map_err(|error| wrong_file(&error))?;
    let party = api.roster().party_of(api.whoami.node).ok_or_else(not_known)?;
    let job = wants.id.unwrap_or_else(|| JobId(crate::random()));
    if file.is_federated() {
        // Who takes part may depend on who is there: a node that lags must not guess.
        api.barrier().await?;
    }
    let known = known_parties(&api);
    let known_names: Vec<Name> = known.keys().cloned().collect();
    let named = file.participants(&known_names).map_err(|error| wrong_file(&error))?;
    let named = named.iter().filter_map(|name| known.get(name).copied());
    let readers: Vec<PartyId> = named.filter(|reader| *reader != party).collect();
    let code = match (file.code(), &wants.code_dir) {
        (Some(_), Some(dir)) if !wants.plan => {
            check_local(local)?;
            check_path("code_dir", dir)?;
            check_apart(&api, dir, true)?;
            Some(push_code(&api, &file, dir.clone(), readers).await?)
        }
        // A plan moves nothing; the code is as good as there.
        (Some(_), _) if wants.plan => Some(VersionId([0; 16])),
        _ => None,
    };
    let secrets = wants.secrets.into_iter().map(|(key, value)| (key, SecretValue::new(value)));
    let given = Given { set: wants.set, secrets: secrets.collect(), code, user: wants.user };
    let looks = Looks {
        api: api.clone(),
        runtime: runtime::Handle::current(),
        job,
        party,
        parties: known_names,
        secret: api.data.sealing_secret().await,
    };
    let settled = tokio::task::spawn_blocking(move || file.settle(&given, &looks));
    let settled = settled.await.map_err(|_| not_known())?;
    let spec = settled.map_err(|error| unsettled(&error))?;
    check_readers(&api, &spec).await?;
    let mut asked = spec.clone();
    if wants.plan && spec.training.is_some() {
        // It would be shared with all who take part.
        asked.code = None;
    }
    let outlook = planner::outlook(&api, job, party, &asked).await?;
    if wants.plan {
        return Ok(item(&api, outlook.json()));
    }
    if let Some(why) = outlook.impossible {
        return Err(Problem::unplaceable(
            format!("the job {} can be placed on no node", spec.name),
            why.cause,
            why.hint,
        ));
    }
    send(&api, job, party, spec).await
}

async fn send(api: &Api, job: JobId, party: PartyId, spec: JobSpec) -> Answer {
    let act = JobSubmit { job, party, spec: Box::new(spec) }.into();
    match api.write(vec![Ask { act, signed: false }]).await {
        // It was sent again because no answer came.
        Ok(_) | Err(WriteError::Refused { refusal: Refusal::JobTaken, .. }) => {}
        Err(error) => return Err(unwritten(api, error)),
    }
    let roster = api.roster();
    let row = api.look(move |see| {
        let state = see.replica.machine();
        state.job(job).map(|found| shown::row(state, &roster, Some(party), job, found))
    });
    Ok(item(api, row.await?.unwrap_or_else(|| json!({ "id": job }))))
}

async fn retry(State(api): State<Api>, Param(wanted): Param<String>) -> Answer {
    has_state(&api)?;
    let viewer = api.roster().party_of(api.whoami.node);
    let found = api.look(move |see| {
        let (id, job) = find_job(see.replica.machine(), &wanted)?;
        check_own(viewer, job, "submitted again")?;
        Ok::<_, Problem>((id, job.party, (*job.spec).clone(), job.over.is_some()))
    });
    let (old, party, mut spec, over) = found.await??;
    if !over {
        return Err(Problem::refused(
            "the job is not over",
            "it is tried again when it is",
            format!("mesh stop {}, or mesh wait {}", old.short(), old.short()),
        ));
    }
    let job = JobId(crate::random());
    if !spec.secrets.is_empty() {
        let secret = api.data.sealing_secret().await.ok_or_else(no_secret)?;
        let mesh = api.whoami.mesh;
        for (variable, sealed) in &mut spec.secrets {
            let spot = |job| SecretSpot { mesh, party, job, variable };
            let value = open_secret(sealed, &secret, &spot(old)).ok_or_else(no_secret)?;
            *sealed = seal_secret(&value, &secret, &spot(job));
        }
    }
    // What was done before it need not be done again.
    spec.after.clear();
    send(&api, job, party, spec).await
}

async fn explain(State(api): State<Api>, Param(wanted): Param<String>) -> Answer {
    has_state(&api)?;
    let job =
        api.look(move |see| find_job(see.replica.machine(), &wanted).map(|(id, _)| id)).await??;
    let explained = planner::explain(&api, job).await?;
    Ok(item(&api, explained.unwrap_or_else(|| json!({ "id": job }))))
}

/// The parties that have a node, by name.
fn known_parties(api: &Api) -> BTreeMap<Name, PartyId> {
    let roster = api.roster();
    let present = roster.present_parties();
    let named = roster.parties.iter().filter(|(party, _)| present.contains(*party));
    named.map(|(party, name)| (name.clone(), *party)).collect()
}

/// Whether all who take part in a training can read what it names: their nodes would find out one by one.
async fn check_readers(api: &Api, spec: &JobSpec) -> Result<(), Problem> {
    let Some(Training::Federated(federated)) = &spec.training else { return Ok(()) };
    let parties: Vec<Name> = spec.groups.iter().filter_map(|group| group.party.clone()).collect();
    let mut needs: Vec<(String, VersionId, Vec<Name>)> = Vec::new();
    for (name, mount) in &spec.data {
        let version = mount.version().into_iter();
        needs.extend(version.map(|id| (format!("the data {name}"), id, parties.clone())));
    }
    // All groups have the same one.
    let image = spec.groups.first().and_then(|group| group.image.as_ref());
    if let Some(Image::Pushed { name, version }) = image {
        needs.push((format!("the image {name}"), *version, parties.clone()));
    }
    // Whoever sums begins with it.
    let start = federated.start.into_iter();
    needs.extend(start.map(|id| ("the model".to_owned(), id, federated.aggregators.clone())));
    let unread = api.look(move |see| {
        let state = see.replica.machine();
        let reads = |version, name: &Name| {
            state.party_named(name).is_some_and(|party| state.may_read(version, party))
        };
        needs.into_iter().find_map(|(what, version, parties)| {
            let party = parties.into_iter().find(|party| !reads(version, party))?;
            Some((what, party))
        })
    });
    match unread.await? {
        None => Ok(()),
        Some((what, party)) => Err(Problem::refused(
            format!("{party} cannot read {what} of the job"),
            "it is not shared with that party, which takes part",
            format!("mesh data share NAME {party}; each/NAME is every party's own data"),
        )),
    }
}

/// Makes the code a version that these parties may read, too. The same code as last time is the same version.
async fn push_code(
    api: &Api,
    file: &JobFile,
    dir: PathBuf,
    mut readers: Vec<PartyId>,
) -> Result<VersionId, Problem> {
    readers.sort_unstable();
    let shared = (!readers.is_empty()).then_some(Visibility::Shared(readers));
    let short: String = file.name().as_str().chars().take(58).collect();
    let name = format!("{short}.code").parse().map_err(|_| not_known())?;
    let wish = Wish {
        path: dir,
        name,
        visibility: shared,
        copies: COPIES,
        in_place: false,
        follow: false,
        apart: Some(own_apart(api)?),
        no_wait: false,
        lineage: Lineage::default(),
        note: Note::default(),
    };
    let cancel = Cancel(Arc::new(AtomicBool::new(false)));
    let (progress, _) = watch::channel(crate::data::push::Progress::default());
    let pushed = api.data.push(wish, &progress, cancel.0.clone()).await;
    pushed.map(|pushed| pushed.known.id).map_err(|error| unpushed(api, error))
}

/// Answers a file's questions from this node's state. On a thread that may wait.
struct Looks {
    api: Api,
    runtime: runtime::Handle,
    job: JobId,
    party: PartyId,
    /// Those that have a node.
    parties: Vec<Name>,
    secret: Option<SealingSecret>,
}

impl Lookup for Looks {
    fn version(&self, data: &DataRef) -> Result<Mount, NotFound> {
        if data.party.as_ref().is_some_and(|party| party.as_str() == EACH) {
            let message = "each/ means the data of every party, and one is wanted here".to_owned();
            return Err(NotFound { message, fix: "name one party's data".into() });
        }
        let found = self.runtime.block_on(self.api.data.resolve(data));
        let known = found.map_err(|error| NotFound {
            message: error.to_string(),
            fix: "mesh data ls shows what there is".into(),
        })?;
        let is_private = matches!(known.visibility, Visibility::Private | Visibility::Listed);
        if is_private && known.party != self.party {
            let message = format!("{}@{} is private to its party", known.name, known.number);
            return Err(NotFound { message, fix: "ask its party to share it".into() });
        }
        let parties = self.api.roster().parties.clone();
        let shown = (!is_private).then(|| match parties.get(&known.party) {
            Some(party) if known.party != self.party => {
                format!("{party}/{}@{}", known.name, known.number)
            }
            _ => format!("{}@{}", known.name, known.number),
        });
        let bytes = if is_private { 0 } else { known.bytes };
        Ok(Mount { what: Source::Version(known.id), shown, bytes })
    }

    fn job(&self, wanted: &str) -> Result<JobId, NotFound> {
        let asked = wanted.to_owned();
        let look =
            self.api.look(move |see| find_job(see.replica.machine(), &asked).map(|(id, _)| id));
        match self.runtime.block_on(look) {
            Ok(Ok(job)) => Ok(job),
            Ok(Err(problem)) => Err(NotFound { message: problem.message, fix: problem.hint }),
            Err(error) => Err(NotFound { message: error.to_string(), fix: String::new() }),
        }
    }

    fn image(&self, image: &str) -> Image {
        match self.runtime.block_on(crate::work::image::find(&self.api.data, image)) {
            Some(version) => Image::Pushed { name: image.to_owned(), version },
            None => Image::Named(image.to_owned()),
        }
    }

    fn seal(&self, variable: &str, value: &[u8]) -> Result<SealedSecret, String> {
        let secret = self.secret.as_ref();
        let secret = secret.ok_or("this node does not have its party's sealing secret yet")?;
        let (mesh, party, job) = (self.api.whoami.mesh, self.party, self.job);
        Ok(seal_secret(value, secret, &SecretSpot { mesh, party, job, variable }))
    }

    fn parties(&self) -> Vec<Name> {
        self.parties.clone()
    }

    fn own_party(&self) -> Option<Name> {
        self.api.roster().parties.get(&self.party).cloned()
    }
}

fn wrong_file(error: &FileError) -> Problem {
    let first = &error.mistakes[0];
    let hint = first.fix.clone().unwrap_or_else(|| "mesh help job.toml".into());
    Problem::bad(first.message.clone(), error.told("job.toml"), hint)
}

fn unsettled(error: &SettleError) -> Problem {
    match error {
        SettleError::File(error) => wrong_file(error),
        error => {
            let fix = error.fix();
            let hint = if fix.is_empty() { "mesh help job.toml" } else { fix };
            Problem::bad(error.to_string(), "the job was not submitted", hint)
        }
    }
}

fn not_known() -> Problem {
    let cause = "it was admitted a moment ago, or is stopping";
    Problem::unavailable("this node does not know the mesh yet", cause, "try again in a moment")
}

fn no_secret() -> Problem {
    Problem::forbidden(
        StatusCode::CONFLICT,
        "the job's secrets cannot be opened here",
        "this node does not have its party's sealing secret, or they were sealed for another job",
        "submit its file again",
    )
}
