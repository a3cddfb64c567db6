//! The environment in which a task runs: what mesh tells it, and what others' tools look for.
//!
//! A script that knows nothing of mesh runs in a gang all the same: `torch.distributed` finds `RANK` and its
//! like, `torchrun` its `PET_…`, TensorFlow its `TF_CONFIG`. What the job's author wrote goes before all of it.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use mesh_consensus::id::{JobId, NodeId};
use serde_json::json;

use crate::job::{Allotment, JobSpec};

/// The directories of a task, as the task sees them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Places {
    /// Where it starts; also its home.
    pub work: String,
    /// Where its data is, one directory for each.
    pub data: String,
    /// Where it may write what nobody needs.
    pub tmp: String,
    /// Where it meets its node; `None` if it does not.
    pub socket: Option<String>,
    /// The file that comes when it is asked to end, and says until when it may take.
    pub preempt_at: Option<String>,
    /// Where models come and updates go, if its job trains.
    pub tensors: Option<String>,
    /// Where Python finds the package `mesh`.
    pub python: Option<String>,
}

/// A task, as far as its environment tells of it.
#[derive(Debug, Clone)]
pub struct Told<'a> {
    /// Its job.
    pub job: JobId,
    /// What is run.
    pub spec: &'a JobSpec,
    /// Its number.
    pub task: u32,
    /// How many tasks there are.
    pub tasks: u32,
    /// Which attempt, from 1 on.
    pub attempt: u32,
    /// Its fence.
    pub fence: u64,
    /// The name of its node.
    pub node: &'a str,
    /// What it was given.
    pub allotment: &'a Allotment,
    /// The ports that were picked or asked for, by name.
    pub ports: &'a BTreeMap<String, u16>,
    /// Where each task of the gang is, by number: node and endpoint. Empty if it is none.
    pub gang: &'a [(NodeId, SocketAddr)],
    /// The network interface on which the gang speaks, if it is known.
    pub interface: Option<&'a str>,
}

/// All variables of a task.
pub fn environment(told: &Told<'_>, places: &Places) -> BTreeMap<String, String> {
    let mut env = BTreeMap::new();
    let mut set = |key: &str, value: String| drop(env.insert(key.to_owned(), value));
    set("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into());
    set("LANG", "C.UTF-8".into());
    set("HOME", places.work.clone());
    set("TMPDIR", places.tmp.clone());
    // What a task prints should be seen when it is printed.
    set("PYTHONUNBUFFERED", "1".into());

    let (group, index) = told.spec.group_of(told.task).unwrap_or((&told.spec.groups[0], told.task));
    set("MESH_JOB", told.job.to_string());
    set("MESH_JOB_NAME", told.spec.name.to_string());
    set("MESH_TASK", told.task.to_string());
    set("MESH_TASKS", told.tasks.to_string());
    set("MESH_GROUP", group.name.to_string());
    set("MESH_TASK_INDEX", index.to_string());
    set("MESH_ATTEMPT", told.attempt.to_string());
    set("MESH_FENCE", told.fence.to_string());
    set("MESH_NODE", told.node.to_owned());
    let meets = [
        ("MESH_SOCKET", &places.socket),
        ("MESH_PREEMPT_AT", &places.preempt_at),
        ("MESH_TENSORS", &places.tensors),
    ];
    for (key, place) in meets {
        if let Some(place) = place {
            set(key, place.clone());
        }
    }
    set("MESH_DATA", places.data.clone());
    for name in told.spec.data.keys() {
        let key = format!("MESH_DATA_{}", variable(name.as_str()));
        set(&key, format!("{}/{name}", places.data));
    }
    for (name, output) in &told.spec.outputs {
        let key = format!("MESH_OUTPUT_{}", variable(name.as_str()));
        set(&key, format!("{}/{}", places.work, output.path));
    }
    if let Some(checkpoint) = &told.spec.checkpoint {
        set("MESH_CHECKPOINT", format!("{}/{}", places.work, checkpoint.path));
    }
    for (name, value) in &told.spec.params {
        set(&format!("MESH_PARAM_{}", variable(name.as_str())), value.clone());
    }
    for (name, port) in told.ports {
        set(&format!("MESH_PORT_{}", variable(name)), port.to_string());
    }
    set("MESH_CPUS", (told.allotment.cpu_milli as f64 / 1000.0).to_string());
    set("MESH_MEMORY_BYTES", told.allotment.memory_bytes.to_string());
    // One thread for each core that it was given: more would only stand in one another's way.
    for threads in ["OMP_NUM_THREADS", "MATMUL_NUM_THREADS"] {
        set(threads, (told.allotment.cpu_milli / 1000).max(1).to_string());
    }
    let gpus: Vec<String> = told.allotment.gpus.iter().map(uuid).collect();
    set("CUDA_VISIBLE_DEVICES", gpus.join(","));
    let visible = if gpus.is_empty() { "void".to_owned() } else { gpus.join(",") };
    set("NVIDIA_VISIBLE_DEVICES", visible);

    if !told.gang.is_empty() {
        env.extend(of_gang(told));
    }
    env.extend(told.spec.env.clone());
    if let Some(python) = &places.python {
        // What its author wrote is found, too, and cannot hide the package by chance.
        let own = env.remove("PYTHONPATH").filter(|own| !own.is_empty());
        let path = own.map_or_else(|| python.clone(), |own| format!("{python}:{own}"));
        env.insert("PYTHONPATH".into(), path);
    }
    env
}

/// What the tools of distributed training look for.
fn of_gang(told: &Told<'_>) -> BTreeMap<String, String> {
    let mut env = BTreeMap::new();
    let mut set = |key: &str, value: String| drop(env.insert(key.to_owned(), value));
    let (rank, size) = (told.task as usize, told.gang.len());
    let Some((own, _)) = told.gang.get(rank) else { return env };
    let (_, first) = told.gang[0];
    let local: Vec<usize> = (0..size).filter(|n| told.gang[*n].0 == *own).collect();
    let local_rank = local.iter().position(|n| *n == rank).unwrap_or(0);
    let (address, port) = (first.ip().to_string(), first.port().to_string());
    set("RANK", rank.to_string());
    set("WORLD_SIZE", size.to_string());
    set("LOCAL_RANK", local_rank.to_string());
    set("LOCAL_WORLD_SIZE", local.len().to_string());
    set("GROUP_RANK", rank.to_string());
    set("MASTER_ADDR", address.clone());
    set("MASTER_PORT", port.clone());
    set("PET_NNODES", size.to_string());
    set("PET_NPROC_PER_NODE", "1".into());
    set("PET_NODE_RANK", rank.to_string());
    set("PET_RDZV_ID", format!("{}-{}", told.job.short(), told.fence));
    set("PET_MASTER_ADDR", address);
    set("PET_MASTER_PORT", port);
    set("JAX_COORDINATOR_ADDRESS", first.to_string());
    let hosts: Vec<String> = told.gang.iter().map(|(_, at)| at.to_string()).collect();
    set("MESH_HOSTS", hosts.join(","));
    set("MESH_RANK", rank.to_string());
    if let Some(interface) = told.interface {
        set("GLOO_SOCKET_IFNAME", interface.to_owned());
        set("NCCL_SOCKET_IFNAME", interface.to_owned());
    }

    let mut cluster = BTreeMap::<&str, Vec<&str>>::new();
    let mut kind = ("worker", 0);
    for (number, host) in hosts.iter().enumerate() {
        let Some((group, index)) = told.spec.group_of(number as u32) else { continue };
        cluster.entry(group.name.as_str()).or_default().push(host);
        if number == rank {
            kind = (group.name.as_str(), index);
        }
    }
    let task = json!({ "type": kind.0, "index": kind.1 });
    set("TF_CONFIG", json!({ "cluster": cluster, "task": task }).to_string());
    env
}

/// A name as part of a variable's name.
fn variable(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    name.chars().map(plain).collect()
}

/// As NVIDIA writes it.
pub fn uuid(bytes: &[u8; 16]) -> String {
    let hex = data_encoding::HEXLOWER.encode(bytes);
    let (a, b, c, d, e) = (&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]);
    format!("GPU-{a}-{b}-{c}-{d}-{e}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::jobs::tests::spec;

    fn told<'a>(
        spec: &'a JobSpec,
        task: u32,
        gang: &'a [(NodeId, SocketAddr)],
        allotment: &'a Allotment,
        ports: &'a BTreeMap<String, u16>,
    ) -> Told<'a> {
        let (job, tasks, interface) = (JobId([7; 16]), spec.tasks(), Some("eth0"));
        let (attempt, fence, node) = (2, 40, "gpu-1");
        Told { job, spec, task, tasks, attempt, fence, node, allotment, ports, gang, interface }
    }

    fn places() -> Places {
        Places {
            work: "/work".into(),
            data: "/data".into(),
            tmp: "/tmp".into(),
            socket: Some("/mesh/run/sock".into()),
            preempt_at: Some("/mesh/run/preempt-at".into()),
            tensors: None,
            python: Some("/mesh/python".into()),
        }
    }

    #[test]
    fn a_task_is_told_where_things_are() {
        let mut spec = spec("train", 1);
        let mount = crate::job::Mount {
            what: crate::job::Source::Version(mesh_consensus::id::VersionId([1; 16])),
            shown: None,
            bytes: 1,
        };
        spec.data.insert("train-set".parse().unwrap(), mount);
        spec.env.insert("OMP_NUM_THREADS".into(), "3".into());
        spec.params.insert("batch-size".parse().unwrap(), "32".into());
        let gpu = [0xab; 16];
        let allotment = Allotment { cpu_milli: 2500, gpus: vec![gpu], ..Allotment::default() };
        let ports = BTreeMap::from([("board".to_owned(), 6006)]);
        let env = environment(&told(&spec, 0, &[], &allotment, &ports), &places());
        assert_eq!(env["MESH_DATA_TRAIN_SET"], "/data/train-set");
        assert_eq!(env["MESH_PORT_BOARD"], "6006");
        assert_eq!(env["MESH_PARAM_BATCH_SIZE"], "32");
        assert_eq!(env["MESH_CPUS"], "2.5");
        assert_eq!(env["OMP_NUM_THREADS"], "3", "what its author wrote goes first");
        assert_eq!(env["MATMUL_NUM_THREADS"], "2");
        assert_eq!(env["CUDA_VISIBLE_DEVICES"], "GPU-abababab-abab-abab-abab-abababababab");
        assert!(!env.contains_key("RANK"));
        assert_eq!(env["MESH_SOCKET"], "/mesh/run/sock");
        assert_eq!(env["MESH_PREEMPT_AT"], "/mesh/run/preempt-at");
        assert!(!env.contains_key("MESH_TENSORS"), "it does not train");
    }

    #[test]
    fn the_package_is_found_beside_what_the_author_has() {
        let mut spec = spec("train", 1);
        let (allotment, ports) = (Allotment::default(), BTreeMap::new());
        let path = |spec: &JobSpec, places: &Places| {
            environment(&told(spec, 0, &[], &allotment, &ports), places).remove("PYTHONPATH")
        };
        assert_eq!(path(&spec, &places()).as_deref(), Some("/mesh/python"));
        spec.env.insert("PYTHONPATH".into(), "/work/lib".into());
        assert_eq!(path(&spec, &places()).as_deref(), Some("/mesh/python:/work/lib"));
        let without = Places { python: None, ..places() };
        assert_eq!(path(&spec, &without).as_deref(), Some("/work/lib"));
    }

    #[test]
    fn a_gang_finds_itself() {
        let mut spec = spec("train", 2);
        let mut ps = spec.groups[0].clone();
        (ps.name, ps.count) = ("ps".parse().unwrap(), 1);
        spec.groups.push(ps);
        let at = |n: u8, port| (NodeId([n; 32]), SocketAddr::from(([10, 0, 0, n], port)));
        let gang = [at(1, 100), at(2, 200), at(2, 300)];
        let (allotment, ports) = (Allotment::default(), BTreeMap::new());
        let env = environment(&told(&spec, 2, &gang, &allotment, &ports), &places());
        assert_eq!((env["RANK"].as_str(), env["WORLD_SIZE"].as_str()), ("2", "3"));
        assert_eq!((env["LOCAL_RANK"].as_str(), env["LOCAL_WORLD_SIZE"].as_str()), ("1", "2"));
        assert_eq!((env["MASTER_ADDR"].as_str(), env["MASTER_PORT"].as_str()), ("10.0.0.1", "100"));
        let tf: serde_json::Value = serde_json::from_str(&env["TF_CONFIG"]).unwrap();
        assert_eq!(tf["task"], json!({ "type": "ps", "index": 0 }));
        assert_eq!(tf["cluster"]["worker"], json!(["10.0.0.1:100", "10.0.0.2:200"]));
    }

    #[test]
    fn without_a_gpu_none_is_seen() {
        let spec = spec("train", 1);
        let (allotment, ports) = (Allotment::default(), BTreeMap::new());
        let env = environment(&told(&spec, 0, &[], &allotment, &ports), &places());
        assert_eq!(env["CUDA_VISIBLE_DEVICES"], "");
        assert_eq!(env["NVIDIA_VISIBLE_DEVICES"], "void");
    }
}
