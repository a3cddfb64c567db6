//! The GPUs of this machine, through NVIDIA's management library (NVML).
//!
//! The library is loaded at run time: a machine without a driver has no GPUs and hears no complaint.
//! Every figure is asked for by itself, and one that cannot be had is left out.
//!
//! The driver may hang, in any call and for good. So a [`Gpus`] belongs to a thread of its own,
//! which [`Watch`] runs: the rest of the node only ever looks at the last answer. Nothing of the
//! driver's is ever shut down, for that may hang, too; it goes with the process.

use std::ffi::{OsStr, OsString};
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{EccCounter, MemoryError, TemperatureSensor};
use nvml_wrapper::enums::device::{SampleValue, UsedGpuMemory};
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id;
use nvml_wrapper::{Device, EventSet, Nvml};
use tracing::debug;

use super::bounded::{Ratio, Text};
use super::record::{GpuFacts, GpuLoad, Health, MAX_GPUS};
use crate::clock;

/// Names another library than the system's: that of a test, or one in an odd place.
pub const LIBRARY_VARIABLE: &str = "MESH_NVML_LIB";

/// More instances than MIG ever makes of one GPU.
const MAX_MIG: u32 = 16;
/// The most error reports taken from the driver at once.
const MAX_EVENTS: usize = 64;
/// Errors that a program brings upon itself; the GPU is well. After NVIDIA's device plugin.
const PROGRAMS_OWN_XIDS: [u16; 6] = [13, 31, 43, 45, 68, 109];

/// A way to the driver. Any call may block: see the head of this file.
#[derive(Debug)]
pub struct Gpus {
    nvml: &'static Nvml,
    /// Where the driver reports errors; not every driver does.
    events: Option<ManuallyDrop<EventSet<'static>>>,
    /// By index, as they were when they last answered: a lost GPU keeps its name.
    known: Vec<Known>,
}

#[derive(Debug, Clone, Default)]
struct Known {
    facts: GpuFacts,
    /// The last error reported, and whether any was not a program's own fault.
    xid: Option<u16>,
    is_faulty: bool,
}

/// All GPUs at one moment: `facts` and `load` are of one length and in one order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sample {
    /// What they are.
    pub facts: Vec<GpuFacts>,
    /// How they do.
    pub load: Vec<GpuLoad>,
}

/// A process that computes on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuProcess {
    /// Which GPU, by its place in the list.
    pub gpu: usize,
    /// The process.
    pub pid: u32,
    /// How much of the GPU's memory it holds, if the driver tells.
    pub memory_bytes: Option<u64>,
}

impl Gpus {
    /// Loads the library at `library`, or the system's. Without a driver there is nothing to open.
    pub fn open(library: Option<&OsStr>) -> Option<Self> {
        let mut builder = Nvml::builder();
        if let Some(library) = library {
            builder.lib_path(library);
        }
        match builder.init() {
            Ok(nvml) => {
                // Once per process, and never closed.
                let nvml: &'static Nvml = Box::leak(Box::new(nvml));
                Some(Self { nvml, events: events(nvml).map(ManuallyDrop::new), known: Vec::new() })
            }
            Err(error) => {
                debug!(%error, "no GPU driver");
                None
            }
        }
    }

    /// Asks about every GPU.
    pub fn sample(&mut self) -> Sample {
        // A driver that does not even count any more has lost those it had.
        if let Ok(count) = self.nvml.device_count() {
            self.known.resize_with(MAX_GPUS.min(count as usize), Known::default);
        }
        self.take_reports();
        let mut sample = Sample::default();
        for (index, known) in (0..).zip(&mut self.known) {
            let mut ask = Ask::default();
            match ask.about(self.nvml.device_by_index(index)) {
                Some(device) => {
                    known.facts = facts(&device, &mut ask, &known.facts);
                    sample.load.push(load(&device, ask, known));
                }
                None => {
                    let mut load = GpuLoad { xid: known.xid, ..GpuLoad::default() };
                    load.health.note(Health::LOST, true);
                    sample.load.push(load);
                }
            }
            sample.facts.push(known.facts.clone());
        }
        sample
    }

    /// Who computes on them.
    pub fn processes(&self) -> Vec<GpuProcess> {
        let mut all = Vec::new();
        for (gpu, index) in (0..self.known.len()).zip(0..) {
            let device = self.nvml.device_by_index(index);
            let processes = device.and_then(|device| device.running_compute_processes());
            all.extend(processes.unwrap_or_default().into_iter().map(|process| GpuProcess {
                gpu,
                pid: process.pid,
                memory_bytes: match process.used_gpu_memory {
                    UsedGpuMemory::Used(bytes) => Some(bytes),
                    UsedGpuMemory::Unavailable => None,
                },
            }));
        }
        all
    }

    /// Takes the errors that the driver has reported since the last time.
    fn take_reports(&mut self) {
        let Some(events) = &self.events else { return };
        for _ in 0..MAX_EVENTS {
            // Does not wait: no event is an error, too.
            let Ok(event) = events.wait(0) else { return };
            let Some(XidError::Value(xid)) = event.event_data else { continue };
            let Ok(index) = event.device.index() else { continue };
            let Some(known) = self.known.get_mut(index as usize) else { continue };
            let xid = u16::try_from(xid).unwrap_or(u16::MAX);
            known.xid = Some(xid);
            known.is_faulty |= !PROGRAMS_OWN_XIDS.contains(&xid);
        }
    }
}

/// Asks the driver to report critical errors of every GPU that can.
fn events(nvml: &'static Nvml) -> Option<EventSet<'static>> {
    let mut set = nvml.create_event_set().ok()?;
    for index in 0..nvml.device_count().ok()? {
        let Ok(device) = nvml.device_by_index(index) else { continue };
        let can = device.supported_event_types().unwrap_or(EventTypes::empty());
        if can.contains(EventTypes::CRITICAL_XID_ERROR) {
            set = device.register_events(EventTypes::CRITICAL_XID_ERROR, set).ok()?;
        }
    }
    Some(set)
}

/// Puts questions to one GPU, and notices when it is no longer there.
#[derive(Debug, Default)]
struct Ask {
    is_lost: bool,
}

impl Ask {
    fn about<T>(&mut self, answer: Result<T, NvmlError>) -> Option<T> {
        self.is_lost |= matches!(answer, Err(NvmlError::GpuLost | NvmlError::ResetRequired));
        answer.ok()
    }
}

fn facts(device: &Device<'_>, ask: &mut Ask, before: &GpuFacts) -> GpuFacts {
    let name = ask.about(device.name()).map(|name| Text::new(&name));
    let uuid = ask.about(device.uuid()).and_then(|uuid| parse_uuid(&uuid));
    let memory_mib = ask.about(device.memory_info()).map(|memory| mib(memory.total));
    let mig = ask.about(device.mig_mode()).filter(|mode| mode.current == 1).map(|_| {
        let slots = ask.about(device.mig_device_count()).unwrap_or(0).min(MAX_MIG);
        let instances = (0..slots).filter(|slot| device.mig_device_by_index(*slot).is_ok());
        u8::try_from(instances.count()).unwrap_or(u8::MAX)
    });
    GpuFacts {
        name: name.unwrap_or_else(|| before.name.clone()),
        uuid: uuid.unwrap_or(before.uuid),
        memory_mib: memory_mib.unwrap_or(before.memory_mib),
        mig: if ask.is_lost { before.mig } else { mig },
    }
}

fn load(device: &Device<'_>, mut ask: Ask, known: &Known) -> GpuLoad {
    let small = |number: u32| u16::try_from(number).unwrap_or(u16::MAX);
    let mut load = GpuLoad {
        utilisation: ask
            .about(device.utilization_rates())
            .map(|rates| Ratio::new(f64::from(rates.gpu) / 100.0)),
        memory_used_mib: ask.about(device.memory_info()).map(|memory| mib(memory.used)),
        temperature_c: ask.about(device.temperature(TemperatureSensor::Gpu)).map(small),
        power_w: ask.about(device.power_usage()).map(|milliwatts| small(milliwatts / 1000)),
        processes: ask.about(device.running_compute_processes_count()).map(small),
        xid: known.xid,
        health: Health::default(),
    };
    let health = &mut load.health;
    let wrong = ask.about(device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile));
    health.note(Health::ECC, wrong.is_some_and(|errors| errors > 0));
    let retiring = ask.about(device.are_pages_pending_retired()).unwrap_or(false);
    let [pending, failed] = remapping(device, &mut ask);
    health.note(Health::REPAIR_PENDING, retiring || pending);
    health.note(Health::REPAIR_FAILED, failed);
    // A power cap that software set and an idle clock are no ailments.
    let slowed = ask.about(device.current_throttle_reasons()).unwrap_or(ThrottleReasons::empty());
    let heat = ThrottleReasons::SW_THERMAL_SLOWDOWN | ThrottleReasons::HW_THERMAL_SLOWDOWN;
    health.note(Health::HOT, slowed.intersects(heat));
    health.note(Health::POWER, slowed.contains(ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN));
    health.note(Health::XID, known.is_faulty);
    health.note(Health::LOST, ask.is_lost);
    load
}

/// Whether rows of memory wait to be replaced by spare ones, and whether that has failed.
fn remapping(device: &Device<'_>, ask: &mut Ask) -> [bool; 2] {
    let fields = [field_id::NVML_FI_DEV_REMAPPED_PENDING, field_id::NVML_FI_DEV_REMAPPED_FAILURE];
    let values = ask.about(device.field_values_for(&fields.map(FieldId))).unwrap_or_default();
    let mut set = values.into_iter().map(|value| match value.and_then(|sample| sample.value) {
        Ok(SampleValue::U32(number)) => number > 0,
        Ok(SampleValue::U64(number)) => number > 0,
        _ => false,
    });
    [set.next().unwrap_or(false), set.next().unwrap_or(false)]
}

fn mib(bytes: u64) -> u32 {
    u32::try_from(bytes >> 20).unwrap_or(u32::MAX)
}

/// `GPU-` and 32 hexadecimal digits with dashes between.
fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits = text.strip_prefix("GPU-")?.replace('-', "").to_ascii_lowercase();
    data_encoding::HEXLOWER.decode(digits.as_bytes()).ok()?.try_into().ok()
}

/// The last answer of a driver that is asked again and again, on a thread of its own.
#[derive(Debug)]
pub struct Watch {
    /// The thread ends once it is the only one to hold this.
    latest: Arc<Mutex<Latest>>,
    every: Duration,
}

#[derive(Debug, Default)]
struct Latest {
    sample: Sample,
    at: Option<Instant>,
}

impl Watch {
    /// Asks every so often, of the library at `library` or the one that [`LIBRARY_VARIABLE`] names
    /// or the system's. Without a driver it asks nobody, and looks for one now and then.
    pub fn start(library: Option<OsString>, every: Duration) -> Self {
        let latest = Arc::new(Mutex::new(Latest::default()));
        let watched = Arc::downgrade(&latest);
        let library = library.or_else(|| std::env::var_os(LIBRARY_VARIABLE));
        /// A minute, as nodes ask every five seconds.
        const AGAIN: u32 = 12;
        let run = move || {
            // The driver may be loaded later than this node, or anew.
            let mut gpus = loop {
                match Gpus::open(library.as_deref()) {
                    Some(gpus) => break gpus,
                    None => std::thread::sleep(AGAIN * every),
                }
                if watched.strong_count() == 0 {
                    return;
                }
            };
            loop {
                let sample = gpus.sample();
                let Some(latest) = watched.upgrade() else { return };
                *lock(&latest) = Latest { sample, at: Some(clock::steady()) };
                drop(latest);
                std::thread::sleep(every);
            }
        };
        // Without a thread there are no GPUs to offer; the node does without.
        if let Err(error) = std::thread::Builder::new().name("gpu".into()).spawn(run) {
            debug!(%error, "no thread to watch GPUs");
        }
        Self { latest, every }
    }

    /// The last answer; empty before the first. If the driver has stopped answering, it says so.
    pub fn latest(&self, now: Instant) -> Sample {
        /// A busy machine may be late, and some calls take a second.
        const GRACE: Duration = Duration::from_secs(10);
        let latest = lock(&self.latest);
        let mut sample = latest.sample.clone();
        let age = latest.at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        for load in &mut sample.load {
            load.health.note(Health::MUTE, age > 3 * self.every + GRACE);
        }
        sample
    }
}

/// The value is replaced whole, so a panic elsewhere cannot leave half of one.
fn lock(latest: &Mutex<Latest>) -> MutexGuard<'_, Latest> {
    latest.lock().unwrap_or_else(PoisonError::into_inner)
}
