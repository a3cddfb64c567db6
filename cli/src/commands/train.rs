//! `mesh train`: the built-in trainer. A job's task runs it, so it stands in no list of commands; alone it needs no mesh.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::{error, process, thread};

use mesh_node::training::builtin::client::ClientError;
use mesh_node::training::builtin::run::{
    Places, Score, Told, TrainError, alone, evaluate, take_part, write,
};
use mesh_node::training::builtin::settings::Settings;
use nix::sys::signal::{SigSet, Signal};
use serde_json::{Value, json};

use crate::context::{Context, note, print, print_item};
use crate::report::{Code, Outcome, Report};
use crate::value::Param;

pub(crate) const EXAMPLES: &str = "\
Examples:
  command = [\"mesh\", \"train\", \"mlp\"]             in a job.toml: takes part in its rounds
  mesh train mlp --data examples/mnist           alone, once through the data; prints the accuracy
  mesh train cnn --data examples/mnist --epochs 5 --set lr=0.02 --out cnn.safetensors
  mesh train cnn --data examples/mnist --evaluate cnn.safetensors

MODEL is logistic, mlp or cnn. Data is idx (MNIST, also packed), npy (x.npy, y.npy) or CSV.
Parameters of the job, or --set here: lr fade momentum decay batch epochs images seed hidden
filters width classes holdout scale evaluate slowdown data.";

/// The exit code of what was stopped.
const INTERRUPTED: i32 = 130;

/// What `train` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Train {
    /// logistic, mlp or cnn
    model: String,
    /// Train alone, on what lies in this directory
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// How often to go through the data
    #[arg(long, value_name = "N", requires = "data")]
    epochs: Option<usize>,
    /// Begin with this model
    #[arg(long, value_name = "FILE", requires = "data")]
    from: Option<PathBuf>,
    /// Write the model there
    #[arg(long, value_name = "FILE", requires = "data")]
    out: Option<PathBuf>,
    /// Train nothing: measure this model on the examples that are held back
    #[arg(long, value_name = "FILE", requires = "data", conflicts_with_all = ["epochs", "from", "out"])]
    evaluate: Option<PathBuf>,
    /// A parameter; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<Param>,
}

pub(crate) fn run(train: &Train, context: &Context) -> Outcome {
    end_when_asked();
    let settings = settings(train).map_err(|error| report(&error))?;
    let mut tell = |told: &Told| {
        // Whoever does not look any longer does not stop it.
        let _ = if context.json {
            print_item(&item(told))
        } else {
            print(&format!("{}\n", line(told, train.data.is_some())))
        };
    };
    let Some(dir) = &train.data else {
        let places = places(&settings)?;
        take_part(&settings, &places, &mut tell).map_err(|error| report(&error))?;
        return Ok(process::ExitCode::SUCCESS);
    };
    if let Some(model) = &train.evaluate {
        let score = evaluate(&settings, model, dir).map_err(|error| report(&error))?;
        return show(&score, context);
    }
    let from = train.from.as_deref();
    let net = alone(&settings, dir, from, &mut tell).map_err(|error| report(&error))?;
    if let Some(out) = &train.out {
        write(out, &net).map_err(|error| report(&error))?;
        note(&format!("the model is in {}", out.display()));
    }
    Ok(process::ExitCode::SUCCESS)
}

/// What was typed goes before the environment.
fn settings(train: &Train) -> Result<Settings, TrainError> {
    let set = |name: &str| {
        let is_it = |param: &&Param| name.eq_ignore_ascii_case(&variable(&param.name));
        let typed = train.set.iter().rfind(is_it).map(|param| param.value.clone());
        typed.or_else(|| std::env::var(name).ok())
    };
    let mut settings = Settings::read(&train.model, set)?;
    settings.epochs = train.epochs.unwrap_or(settings.epochs);
    Ok(settings)
}

/// The variable in which a parameter stands.
fn variable(name: &str) -> String {
    format!("MESH_PARAM_{}", name.replace(['-', '.'], "_"))
}

/// Where a task finds things.
fn places(settings: &Settings) -> Result<Places, Report> {
    let path = |name: &str| {
        let found = std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
        found.ok_or_else(|| {
            let message = "there is no training to take part in";
            let cause = format!("{name} is not set: this is no task of a job that trains");
            Report::new(Code::Usage, message, cause, "mesh train MODEL --data DIR trains alone")
        })
    };
    Ok(Places {
        socket: path("MESH_SOCKET")?,
        tensors: path("MESH_TENSORS")?,
        data: path(&settings.data_variable())?,
    })
}

/// Ctrl-C and a polite kill end it, also where it is the first process of a container, to which the system passes on
/// only what a process waits for.
fn end_when_asked() {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    // Threads that are started later inherit it. Where it is refused, the system ends the process as it always does.
    if signals.thread_block().is_ok() {
        thread::spawn(move || {
            let _ = signals.wait();
            process::exit(INTERRUPTED);
        });
    }
}

fn line(told: &Told, is_alone: bool) -> String {
    let mut line = format!("{} {}:", if is_alone { "epoch" } else { "round" }, told.round);
    // Writing into a string does not fail.
    let _ = match &told.score {
        Some(score) => write!(line, " accuracy {:.4}, loss {:.3},", score.accuracy, score.loss),
        None => write!(line, " train-loss {:.3},", told.train_loss),
    };
    let _ = write!(line, " trained on {} images in {:.1} s", told.examples, told.seconds);
    if let Some(why) = &told.refused {
        let _ = write!(line, "; not taken: {}", crate::view::clean(why));
    }
    line
}

fn item(told: &Told) -> Value {
    json!({
        "round": told.round,
        "accuracy": told.score.map(|score| score.accuracy),
        "loss": told.score.map(|score| score.loss),
        "evaluated": told.score.map_or(0, |score| score.examples),
        "examples": told.examples,
        "train_loss": told.train_loss,
        "seconds": told.seconds,
        "taken": told.refused.is_none(),
    })
}

fn show(score: &Score, context: &Context) -> Outcome {
    let Score { accuracy, loss, examples } = score;
    if context.json {
        return print_item(&json!({ "accuracy": accuracy, "loss": loss, "examples": examples }));
    }
    print(&format!("accuracy {accuracy:.4}, loss {loss:.3} on {examples} examples\n"))
}

/// An error as three lines.
fn report(error: &TrainError) -> Report {
    if let TrainError::Client(ClientError::Refused { message, cause, hint }) = error {
        return Report::new(Code::Refused, message, cause, hint);
    }
    let (code, hint) = match error {
        TrainError::Setting(_) => (Code::Usage, "mesh train --help"),
        TrainError::Data(_) => (Code::Failed, "idx, npy or CSV files: see mesh train --help"),
        TrainError::Shape(_) => (Code::Failed, "other sizes in hidden, filters, width or classes"),
        TrainError::Fit(_) => (Code::Failed, "data of the same kind at every party, or classes=N"),
        TrainError::Read { .. } | TrainError::Load { .. } => {
            (Code::Failed, "a model that mesh train has written")
        }
        TrainError::Write { .. } => (Code::Failed, "another place, or more room"),
        TrainError::Diverged { .. } => (Code::Failed, "a smaller lr, such as lr=0.01"),
        TrainError::Kind { .. } => (Code::Failed, "kind = \"federated\" in the job.toml"),
        TrainError::Name { .. } => (Code::Failed, "mesh logs JOB"),
        TrainError::Client(_) => (Code::NoNode, "mesh status on the node of this task"),
    };
    let mut causes = Vec::new();
    let mut beneath = error::Error::source(error);
    while let Some(cause) = beneath {
        causes.push(cause.to_string());
        beneath = cause.source();
    }
    let cause = if causes.is_empty() { why(error).to_owned() } else { causes.join(": ") };
    Report::new(code, error.to_string(), cause, hint)
}

/// Where nothing lies beneath.
fn why(error: &TrainError) -> &'static str {
    match error {
        TrainError::Diverged { .. } => "steps are too large for this model and data",
        TrainError::Kind { .. } => "mesh train takes part in rounds, and this job has none",
        _ => "no further reason is known",
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn train(model: &str, set: &[&str]) -> Train {
        let set = set.iter().map(|word| word.parse().unwrap()).collect();
        let (data, epochs, from, out, evaluate) = (None, None, None, None, None);
        Train { model: model.to_owned(), data, epochs, from, out, evaluate, set }
    }

    #[test]
    fn a_round_is_one_line() {
        let score = Some(Score { accuracy: 0.93, loss: 0.211, examples: 1000 });
        let mut told =
            Told { round: 3, score, examples: 2000, train_loss: 0.5, seconds: 0.44, refused: None };
        let want = "round 3: accuracy 0.9300, loss 0.211, trained on 2000 images in 0.4 s";
        assert_eq!(line(&told, false), want);
        told.score = None;
        told.refused = Some("round 3 is\nover".into());
        let want = "epoch 3: train-loss 0.500, trained on 2000 images in 0.4 s; not taken: round 3 is over";
        assert_eq!(line(&told, true), want);
    }

    #[test]
    fn what_is_typed_goes_first_and_the_last_of_it() {
        let settings = settings(&train("mlp", &["lr=0.5", "hidden=7,8", "lr=0.25"])).unwrap();
        assert_eq!(settings.sgd.lr, 0.25);
        let hidden = vec![7, 8];
        assert_eq!(settings.kind, mesh_node::training::builtin::shape::Kind::Mlp { hidden });
    }

    #[test]
    fn every_failure_has_three_lines_that_say_something() {
        let unknown = report(&settings(&train("tree", &[])).unwrap_err());
        assert_eq!(unknown.code, Code::Usage);
        assert_eq!(unknown.cause, "there is no model \"tree\"; there are logistic, mlp, cnn");
        let settings = settings(&train("mlp", &[])).unwrap();
        let nowhere = Path::new("/nowhere/at/all");
        let missing = report(&evaluate(&settings, nowhere, nowhere).unwrap_err());
        assert_eq!(missing.message, "there is nothing to train on");
        assert!(missing.cause.starts_with("/nowhere/at/all could not be read: "), "{missing:?}");
        let refused = ClientError::Refused {
            message: "a".to_owned(),
            cause: "b".to_owned(),
            hint: "c".to_owned(),
        };
        let want = Report::new(Code::Refused, "a", "b", "c");
        assert_eq!(report(&refused.into()), want);
        let diverged = report(&TrainError::Diverged { round: 2 });
        assert!(diverged.cause.contains("too large") && diverged.hint.contains("lr"));
    }
}
