//! Tasks that start together and find one another.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use mesh_chaos_tests::hosts::need;
use serde_json::{Value, json};

use crate::{Ground, aside, long, text};

/// The system's own, which has the system's torch: another one may come first on the path.
const PYTHON: &str = "/usr/bin/python3";
const WORKERS: usize = 4;

/// Says what it was told, and meets the others: the first listens, the others tell it who they are.
const MEETS: &str = r#"
import os, socket, sys, time

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
print("rank", rank, "of", size)
print("local", os.environ["LOCAL_RANK"], "of", os.environ["LOCAL_WORLD_SIZE"])
print("master", "%s:%d" % place)
print("config", os.environ["TF_CONFIG"])
sys.stdout.flush()

if rank == 0:
    server = socket.create_server(place)
    server.settimeout(120)
    met = sorted(int(server.accept()[0].makefile().readline()) for _ in range(1, size))
    print("met", *met)
else:
    for _ in range(1200):
        try:
            peer = socket.create_connection(place, timeout=10)
            break
        except OSError:
            time.sleep(0.1)
    else:
        sys.exit("nobody listens at %s:%d" % place)
    peer.sendall(b"%d\n" % rank)
    peer.close()
"#;

#[test]
fn a_gang_of_four_is_told_who_it_is_and_meets() {
    if !need(&[PYTHON]) {
        return;
    }
    let ground = Ground::new(WORKERS);
    let project = aside(&ground.hosts[0], "project");
    fs::create_dir_all(&project).unwrap();
    fs::write(project.join("meet.py"), MEETS).unwrap();
    let job = format!(
        r#"
name = "meets"
[run]
command = ["{PYTHON}", "meet.py"]
code = "."
[gang]
workers = {WORKERS}
[place]
spread = "node"
"#
    );
    let file = project.join("job.toml");
    fs::write(&file, ground.marked(&job)).unwrap();
    let said = ground.mesh(0, &["submit", text(&file)]);
    assert!(said.ok(), "{said:?}");
    let done = ground.job(0, "meets").unwrap();
    let id = done["id"].as_str().unwrap();
    let nodes: BTreeSet<usize> = (0..WORKERS).map(|task| ground.node_of(&done, task)).collect();
    assert_eq!(nodes.len(), WORKERS, "there is a node for each: {done}");

    let mut masters = BTreeSet::new();
    for rank in 0..WORKERS {
        let told = |begins: &str| ground.until_line(0, id, rank, begins);
        assert_eq!(told("rank "), format!("{rank} of {WORKERS}"));
        assert_eq!(told("local "), "0 of 1", "it is alone on its node");
        let master = told("master ");
        let config: Value = serde_json::from_str(&told("config ")).unwrap();
        assert_eq!(config["task"], json!({ "type": "worker", "index": rank }));
        let workers = config["cluster"]["worker"].as_array().unwrap();
        assert_eq!((workers.len(), &workers[0]), (WORKERS, &Value::from(master.as_str())));
        masters.insert(master);
    }
    assert_eq!(masters.len(), 1, "they look for different ones: {masters:?}");
    assert_eq!(ground.until_line(0, id, 0, "met "), "1 2 3");
    ground.calm();
}

#[test]
fn a_gang_of_four_trains_with_torch_which_knows_nothing_of_mesh() {
    // Torch is a gigabyte that few machines have. Without it the gang above says the same of mesh.
    if !long() {
        return;
    }
    if !need(&[PYTHON]) {
        return;
    }
    let torch = Command::new(PYTHON).args(["-c", "import torch"]).output();
    if !torch.is_ok_and(|tried| tried.status.success()) {
        println!("SKIPPED: this machine has no torch (python3-torch)");
        return;
    }
    let ground = Ground::new(WORKERS);
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/jobs/torch");
    let project = aside(&ground.hosts[0], "project");
    fs::create_dir_all(&project).unwrap();
    fs::copy(example.join("train.py"), project.join("train.py")).unwrap();
    let job = fs::read_to_string(example.join("job.toml")).unwrap();
    let file = project.join("job.toml");
    fs::write(&file, ground.marked(&job)).unwrap();
    let said = ground.mesh(0, &["submit", text(&file)]);
    assert!(said.ok(), "{said:?}");
    for rank in 0..WORKERS {
        for line in [
            format!("task {rank} | rank {rank} of 4: the sum of all ranks is 6"),
            format!("task {rank} | rank {rank} of 4: y = 3.00 x + 2.00"),
        ] {
            assert!(said.stdout.lines().any(|said| said == line), "{line:?} is not in {said:?}");
        }
    }
    ground.calm();
}
