//! Whole trainings: beside a node that is played, and alone.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::super::client::played::{Reply, play};
use super::*;

/// Three heaps of points, as text.
fn data() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut random = fastrand::Rng::with_seed(5);
    let mut text = String::from("x,y,label\n");
    for n in 0..120 {
        let (x, y) = [(0.0, 2.0), (2.0, -1.0), (-2.0, -1.0)][n % 3];
        let mut near = |at: f32| at + random.f32() - 0.5;
        text += &format!("{},{},{}\n", near(x), near(y), n % 3);
    }
    fs::write(dir.path().join("data.csv"), text).unwrap();
    dir
}

fn settings(model: &str, set: &[(&str, &str)]) -> Settings {
    Settings::read(model, |name| {
        let found = set.iter().find(|(key, _)| name == format!("MESH_PARAM_{key}"));
        found.map(|(_, value)| (*value).to_owned())
    })
    .unwrap()
}

/// A node that makes each update the next model, for so many rounds. Keeps what it was told.
fn node(dir: &Path, rounds: u64) -> Arc<Mutex<Vec<(String, Value)>>> {
    let told = Arc::new(Mutex::new(Vec::new()));
    let (kept, tensors) = (told.clone(), dir.to_owned());
    let mut round = 0;
    play(&dir.join("s"), move |path, body| {
        let answer = match path {
            "/v1/join" => json!({ "kind": "federated", "strategy": { "name": "fedavg" } }),
            "/v1/submit" => {
                let update = tensors.join(body["update"].as_str().unwrap());
                fs::copy(update, tensors.join(format!("model-{round}"))).unwrap();
                round += 1;
                json!({ "taken": true })
            }
            next if next.starts_with("/v1/next") && round > rounds => json!({ "state": "done" }),
            next if next.starts_with("/v1/next") => {
                let model = (round > 0).then(|| format!("model-{}", round - 1));
                json!({ "state": "round", "round": round, "model": model })
            }
            _ => json!({}),
        };
        kept.lock().unwrap().push((path.to_owned(), body.clone()));
        Reply::Json(200, answer)
    });
    told
}

fn places(room: &TempDir, data: &TempDir) -> Places {
    let tensors = room.path().to_owned();
    Places { socket: tensors.join("s"), tensors, data: data.path().to_owned() }
}

#[test]
fn a_training_goes_from_join_to_done_and_learns() {
    let (room, data) = (tempfile::tempdir().unwrap(), data());
    let told = node(room.path(), 5);
    let mut rounds = Vec::new();
    take_part(
        &settings("mlp", &[("HIDDEN", "8"), ("BATCH", "8")]),
        &places(&room, &data),
        &mut |r| {
            rounds.push(r.clone());
        },
    )
    .unwrap();
    assert_eq!(rounds.len(), 6);
    assert_eq!((rounds[0].round, rounds[0].score, rounds[0].examples), (0, None, 108));
    assert_eq!(rounds[5].score.unwrap().accuracy, 1.0);
    let told = told.lock().unwrap();
    let paths: Vec<&str> = told.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(paths[..4], ["/v1/join", "/v1/next", "/v1/submit", "/v1/next?after=0"]);
    assert_eq!(paths[4..6], ["/v1/evaluated", "/v1/submit"]);
    assert_eq!(paths.last(), Some(&"/v1/done"));
    let last = &told.iter().rfind(|(path, _)| path == "/v1/evaluated").unwrap().1;
    assert_eq!((&last["round"], &last["examples"]), (&json!(5), &json!(12)));
    assert_eq!(last["metrics"]["accuracy"], json!(1.0));
    // Updates do not stay in memory once they were handed over.
    assert!(!room.path().join("out-5.safetensors").exists());
}

#[test]
fn the_model_that_comes_goes_before_the_settings() {
    let (room, data) = (tempfile::tempdir().unwrap(), data());
    let other =
        alone(&settings("mlp", &[("HIDDEN", "5")]), data.path(), None, &mut |_| ()).unwrap();
    let path = room.path().join("model");
    write(&path, &other).unwrap();
    let train = data::read(data.path(), settings("mlp", &[]).reading).unwrap().train;
    let net = load(
        &path,
        Some(Net::new(&settings("mlp", &[]).shape(train.shape, 3).unwrap(), 1)),
        &train,
        &train,
    );
    assert_eq!(net.unwrap().values(), other.values());
}

#[test]
fn a_model_for_other_data_is_refused() {
    let (room, data) = (tempfile::tempdir().unwrap(), data());
    let path = room.path().join("model");
    let input = super::super::shape::Input { channels: 1, height: 1, width: 7 };
    write(&path, &Net::new(&Shape::new(super::super::shape::Kind::Logistic, input, 3).unwrap(), 1))
        .unwrap();
    let error = evaluate(&settings("mlp", &[]), &path, data.path()).unwrap_err();
    assert!(matches!(error, TrainError::Load { .. }), "{error:?}");
    fs::write(&path, b"\xff\xff\xff\xff\xff\xff\xff\xff").unwrap();
    let error = evaluate(&settings("mlp", &[]), &path, data.path()).unwrap_err();
    assert!(matches!(error, TrainError::Read { .. }), "{error:?}");
}

#[test]
fn alone_it_learns_too_and_its_model_is_worth_the_same_when_read_again() {
    let (room, data) = (tempfile::tempdir().unwrap(), data());
    let settings = settings("mlp", &[("EPOCHS", "5"), ("BATCH", "8")]);
    let mut epochs = Vec::new();
    let net = alone(&settings, data.path(), None, &mut |epoch| epochs.push(epoch.clone())).unwrap();
    assert_eq!(epochs.iter().map(|epoch| epoch.round).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    let path = room.path().join("model.safetensors");
    write(&path, &net).unwrap();
    let score = evaluate(&settings, &path, data.path()).unwrap();
    assert_eq!(Some(score), epochs[4].score);
    assert_eq!(score.accuracy, 1.0);
}

#[test]
fn weights_without_bounds_are_not_handed_over() {
    let (room, data) = (tempfile::tempdir().unwrap(), data());
    let told = node(room.path(), 5);
    let wild = settings("mlp", &[("LR", "1e30")]);
    let error = take_part(&wild, &places(&room, &data), &mut |_| ()).unwrap_err();
    assert!(matches!(error, TrainError::Diverged { round: 0 }), "{error:?}");
    assert!(told.lock().unwrap().iter().all(|(path, _)| path != "/v1/submit"));
}

#[test]
fn a_job_that_does_not_train_is_left_alone() {
    let (room, data) = (tempfile::tempdir().unwrap(), data());
    play(&room.path().join("s"), |_, _| Reply::Json(200, json!({ "kind": "plain" })));
    let error = take_part(&settings("mlp", &[]), &places(&room, &data), &mut |_| ()).unwrap_err();
    assert!(matches!(error, TrainError::Kind { .. }), "{error:?}");
}

#[test]
fn a_model_is_not_looked_for_elsewhere() {
    for name in ["../model", "/etc/passwd", "", ".", ".."] {
        assert!(plain(name).is_err(), "{name}");
    }
    assert_eq!(plain("model-2.safetensors").unwrap(), "model-2.safetensors");
}

fn order(images: &str, seed: u64, round: u32, epoch: usize) -> Vec<u32> {
    let settings = settings("mlp", &[("IMAGES", images)]);
    Orders { examples: 10, settings: &settings, seed, round }.order(epoch)
}

#[test]
fn rounds_walk_through_the_shuffled_data() {
    // Five rounds of four go through ten examples twice.
    let walked: Vec<u32> = (0..5).flat_map(|round| order("4", 1, round, 0)).collect();
    let all: BTreeSet<u32> = (0..10).collect();
    assert_eq!(walked[..10].iter().copied().collect::<BTreeSet<u32>>(), all);
    assert_eq!(walked[10..].iter().copied().collect::<BTreeSet<u32>>(), all);
    assert_ne!(walked[..10], walked[10..]);
    assert_ne!(walked[..10], (0..10).collect::<Vec<u32>>());
    // Whoever is started again goes on as before; others go elsewhere.
    assert_eq!(order("4", 1, 3, 0), walked[12..16]);
    assert_ne!(order("0", 1, 0, 0), order("0", 2, 0, 0));
    assert_eq!(order("25", 1, 0, 0).len(), 25);
}

#[test]
fn a_further_epoch_has_the_same_examples_in_another_order() {
    let (first, second) = (order("0", 1, 0, 0), order("0", 1, 0, 1));
    assert_ne!(first, second);
    let sorted = |mut order: Vec<u32>| {
        order.sort_unstable();
        order
    };
    assert_eq!(sorted(first), sorted(second));
}

#[test]
fn who_is_slow_on_purpose_takes_so_much_longer() {
    let worked = Duration::from_millis(100);
    assert_eq!(idle(worked, 1.0), Duration::ZERO);
    assert_eq!(idle(worked, 5.0), 4 * worked);
    let (data, slow) = (data(), settings("mlp", &[("SLOWDOWN", "1000"), ("BATCH", "1000")]));
    // A single batch takes some microseconds at least, and here a thousand times as long.
    let mut seconds = 0.0;
    alone(&slow, data.path(), None, &mut |told| seconds = told.seconds).unwrap();
    assert!(seconds > 0.002, "{seconds}");
}

#[test]
fn the_rate_fades_from_round_to_round() {
    assert_eq!(faded(1.0, 1_000_000), 1.0);
    assert_eq!((faded(0.5, 0), faded(0.5, 3)), (1.0, 0.125));
    assert_eq!(faded(0.5, u32::MAX), 0.0);
}
