use proptest::prelude::*;

use super::*;
use crate::awareness::bounded::{MAX_TEXT, Ratio};
use crate::awareness::record::{Facts, GpuFacts, GpuLoad, Health, Interface};

const MESH: MeshId = MeshId([7; 32]);
const STAMP: Stamp = Stamp { incarnation: 1_763_000_000_000, sequence: 9 };

fn key() -> SigningKey {
    SigningKey::from_bytes(&[3; 32])
}

/// A usual node: two addresses a plane, four interfaces, eight GPUs.
fn usual() -> Record {
    let gpu = GpuFacts {
        name: Text::new("NVIDIA H100 80GB HBM3"),
        uuid: [0xa5; 16],
        memory_mib: 81_559,
        mig: None,
    };
    let busy = GpuLoad {
        utilisation: Some(Ratio::new(0.97)),
        memory_used_mib: Some(70_000),
        temperature_c: Some(66),
        power_w: Some(612),
        processes: Some(1),
        xid: None,
        health: Health::default(),
    };
    let interface = Interface { name: Text::new("enp65s0f0"), speed_mbps: 100_000 };
    let addresses = |port| {
        vec![
            format!("192.0.2.17:{port}").parse().unwrap(),
            format!("[2001:db8::17]:{port}").parse().unwrap(),
        ]
    };
    Record {
        data: addresses(6374),
        overlay: addresses(6375),
        name: Text::new("rack-7-node-12"),
        version: Text::new("0.1.0"),
        facts: Facts {
            arch: Text::new("x86_64"),
            os: Text::new("linux"),
            kernel: Text::new("6.8.0-45-generic"),
            hostname: Text::new("rack-7-node-12.example.org"),
            cpus: 192,
            memory_bytes: 2 << 40,
            disk_bytes: 30 << 40,
            fsync_p99_us: 180,
            interfaces: vec![interface; 4],
            gpus: vec![gpu; 8],
            docker: Text::new("27.3.1"),
        },
        load: Load {
            time_ms: STAMP.incarnation,
            cpu: Ratio::new(0.4),
            load1_milli: 71_250,
            memory_free_bytes: 1 << 40,
            disk_free_bytes: 9 << 40,
            gpus: vec![busy; 8],
        },
    }
}

fn signed() -> Signed {
    usual().sign(&key(), MESH, STAMP).unwrap()
}

#[test]
fn a_usual_node_fits_into_one_kibibyte() {
    assert!(signed().as_bytes().len() <= 1024, "{}", signed().as_bytes().len());
    let update = usual().load.sign(&key(), MESH, STAMP, 8).unwrap();
    assert!(update.as_bytes().len() <= 400, "{}", update.as_bytes().len());
}

#[test]
fn a_signed_record_is_read_back_and_believed() {
    let read = Signed::parse(signed().as_bytes()).unwrap();
    assert_eq!(read, signed());
    assert_eq!(read.verify(MESH), Ok(()));
    assert_eq!(read.said(), &Said::Whole(usual()));
}

#[test]
fn every_changed_byte_is_noticed() {
    let bytes = signed().as_bytes().to_vec();
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        let believed = Signed::parse(&changed).and_then(|signed| signed.verify(MESH));
        assert!(believed.is_err(), "byte {at}");
    }
}

#[test]
fn every_shortened_or_lengthened_record_is_refused() {
    let bytes = signed().as_bytes().to_vec();
    for length in 0..bytes.len() {
        assert!(Signed::parse(&bytes[..length]).is_err(), "{length} bytes");
    }
    let longer = [bytes.as_slice(), &[0]].concat();
    assert_eq!(Signed::parse(&longer), Err(RecordError::Malformed));
    let huge = vec![FORMAT; MAX_RECORD_BYTES + 1];
    assert_eq!(Signed::parse(&huge), Err(RecordError::TooLarge { bytes: huge.len() }));
}

#[test]
fn a_record_counts_only_for_its_mesh_and_under_its_own_key() {
    assert_eq!(signed().verify(MeshId([8; 32])), Err(RecordError::OtherMesh { mesh: MESH }));
    // Somebody signs what another is supposed to have said.
    let victim = NodeId([9; 32]);
    let load = usual().load;
    let content = Content {
        format: FORMAT,
        mesh: MESH,
        node: victim,
        stamp: STAMP,
        said: Said::Update { of: 1, load },
    };
    let forged = signed_by(&key(), &postcard::to_stdvec(&content).unwrap());
    let forged = Signed::parse(&forged).unwrap();
    assert_eq!(forged.verify(MESH), Err(RecordError::BadSignature { node: victim }));
}

#[test]
fn a_second_encoding_of_the_same_content_is_refused() {
    let load = Load::default();
    let node = NodeId(key().verifying_key().to_bytes());
    let stamp = Stamp { incarnation: 1, sequence: 2 };
    let said = Said::Update { of: 1, load };
    let content =
        postcard::to_stdvec(&Content { format: FORMAT, mesh: MESH, node, stamp, said }).unwrap();
    assert!(Signed::parse(&signed_by(&key(), &content)).is_ok());
    // The incarnation 1 as two bytes: the decoder reads it, and the signature is right.
    let at = 65;
    assert_eq!(content[at], 1);
    let longer = [&content[..at], &[0x81, 0x00], &content[at + 1..]].concat();
    assert!(exact::<Content<Said>>(&longer).is_some());
    assert_eq!(Signed::parse(&signed_by(&key(), &longer)), Err(RecordError::Malformed));
}

#[test]
fn a_later_format_is_told_from_rubbish() {
    let mut bytes = signed().as_bytes().to_vec();
    bytes[0] = 2;
    assert_eq!(Signed::parse(&bytes), Err(RecordError::OtherFormat { format: 2 }));
    assert_eq!(Signed::parse(&[]), Err(RecordError::Malformed));
}

#[test]
fn what_nobody_could_use_is_not_signed() {
    let with = |change: fn(&mut Record)| {
        let mut record = usual();
        change(&mut record);
        record.sign(&key(), MESH, STAMP).err()
    };
    let nowhere = |r: &mut Record| r.data.push("0.0.0.0:6374".parse().unwrap());
    assert_eq!(with(nowhere), Some(RecordError::Malformed));
    let no_port = |r: &mut Record| r.overlay.push("192.0.2.1:0".parse().unwrap());
    assert_eq!(with(no_port), Some(RecordError::Malformed));
    let too_many = |r: &mut Record| r.data = vec![r.data[0]; MAX_ADDRESSES + 1];
    assert_eq!(with(too_many), Some(RecordError::Malformed));
    let unlike = |r: &mut Record| r.load.gpus.truncate(7);
    assert_eq!(with(unlike), Some(RecordError::Malformed));
    let load = Load::default();
    assert_eq!(load.sign(&key(), MESH, STAMP, STAMP.sequence), Err(RecordError::Malformed));
}

#[test]
fn the_largest_machine_is_made_to_fit() {
    let long = || Text::new(&"x".repeat(MAX_TEXT));
    let mut record = usual();
    let full = GpuLoad {
        utilisation: Some(Ratio::new(1.0)),
        memory_used_mib: Some(u32::MAX),
        temperature_c: Some(u16::MAX),
        power_w: Some(u16::MAX),
        processes: Some(u16::MAX),
        xid: Some(u16::MAX),
        health: Health::LOST,
    };
    let gpu = GpuFacts { name: long(), uuid: [1; 16], memory_mib: u32::MAX, mig: Some(u8::MAX) };
    record.name = long();
    record.version = long();
    record.data = vec![record.data[1]; 40];
    record.overlay = vec![record.data[1]; 40];
    record.overlay[0] = "0.0.0.0:0".parse().unwrap();
    record.facts = Facts {
        arch: long(),
        os: long(),
        kernel: long(),
        hostname: long(),
        cpus: u32::MAX,
        memory_bytes: u64::MAX,
        disk_bytes: u64::MAX,
        fsync_p99_us: u32::MAX,
        interfaces: vec![Interface { name: long(), speed_mbps: 1 }; 99],
        gpus: vec![gpu; 99],
        docker: long(),
    };
    record.load = Load {
        time_ms: u64::MAX,
        cpu: Ratio::new(1.0),
        load1_milli: u32::MAX,
        memory_free_bytes: u64::MAX,
        disk_free_bytes: u64::MAX,
        gpus: vec![full; 99],
    };
    record.fit();
    let last = Stamp { incarnation: u64::MAX, sequence: u64::MAX };
    let signed = record.sign(&key(), MESH, last).unwrap();
    let Said::Whole(read) = signed.said() else { panic!("a whole record was signed") };
    assert_eq!((read.facts.gpus.len(), read.data.len(), read.overlay.len()), (16, 4, 4));

    let mut small = usual();
    small.fit();
    assert_eq!(small, usual());
}

#[test]
fn an_incarnation_grows_even_if_the_clock_went_back() {
    assert_eq!(incarnation(500, None), 500);
    assert_eq!(incarnation(500, Some(400)), 500);
    assert_eq!(incarnation(500, Some(900)), 901);
    assert_eq!(incarnation(0, Some(u64::MAX)), u64::MAX);
}

fn signed_by(key: &SigningKey, content: &[u8]) -> Vec<u8> {
    [content, &key.sign(&signed_bytes(content)).to_bytes()].concat()
}

fn text() -> impl Strategy<Value = Text> {
    "[ -~]{0,63}".prop_map(|text| Text::new(&text))
}

prop_compose! {
    fn address()(ip: std::net::Ipv6Addr, v4: std::net::Ipv4Addr, port in 1u16.., is_v4: bool)
        -> std::net::SocketAddr
    {
        if is_v4 { (v4, port).into() } else { (ip.to_canonical(), port).into() }
    }
}

prop_compose! {
    fn gpu()(name in text(), uuid: [u8; 16], memory_mib: u32, mig: Option<u8>, share in proptest::option::of(0.0..1.0),
        memory_used_mib: Option<u32>, temperature_c: Option<u16>, power_w: Option<u16>, processes: Option<u16>, xid: Option<u16>)
        -> (GpuFacts, GpuLoad)
    {
        let utilisation = share.map(Ratio::new);
        let load = GpuLoad { utilisation, memory_used_mib, temperature_c, power_w, processes, xid, health: Health::ECC };
        (GpuFacts { name, uuid, memory_mib, mig }, load)
    }
}

prop_compose! {
    fn record()(
        data in prop::collection::vec(address(), 0..4),
        overlay in prop::collection::vec(address(), 0..4),
        texts in prop::array::uniform6(text()),
        numbers: [u64; 5],
        smaller: [u32; 3],
        interfaces in prop::collection::vec((text(), any::<u32>()), 0..4),
        gpus in prop::collection::vec(gpu(), 0..4),
        cpu in 0.0..1.0,
    ) -> Record {
        let [name, version, arch, os, kernel, hostname] = texts;
        let [memory_bytes, disk_bytes, time_ms, memory_free_bytes, disk_free_bytes] = numbers;
        let [cpus, fsync_p99_us, load1_milli] = smaller;
        let interfaces = interfaces.into_iter().map(|(name, speed_mbps)| Interface { name, speed_mbps }).collect();
        let (gpus, loads) = gpus.into_iter().unzip();
        let docker = version.clone();
        let facts = Facts { arch, os, kernel, hostname, cpus, memory_bytes, disk_bytes, fsync_p99_us, interfaces, gpus, docker };
        let load = Load { time_ms, cpu: Ratio::new(cpu), load1_milli, memory_free_bytes, disk_free_bytes, gpus: loads };
        Record { data, overlay, name, version, facts, load }
    }
}

proptest! {
    #[test]
    fn whatever_can_be_signed_is_read_back_as_it_was(mut record in record(), incarnation: u64, sequence in 1u64..) {
        record.fit();
        let stamp = Stamp { incarnation, sequence };
        match record.sign(&key(), MESH, stamp) {
            Ok(signed) => {
                let read = Signed::parse(signed.as_bytes()).unwrap();
                prop_assert_eq!(read.said(), &Said::Whole(record));
                prop_assert_eq!((read.stamp(), read.verify(MESH)), (stamp, Ok(())));
            }
            // The generator also makes addresses that nobody can dial.
            Err(error) => prop_assert_eq!(error, RecordError::Malformed),
        }
    }

    #[test]
    fn rubbish_is_refused_without_a_panic(mut bytes: Vec<u8>, known_format: bool) {
        if let (Some(first), true) = (bytes.first_mut(), known_format) {
            *first = FORMAT;
        }
        prop_assert!(Signed::parse(&bytes).and_then(|signed| signed.verify(MESH)).is_err());
    }

    #[test]
    fn a_mangled_record_is_never_believed(at: prop::sample::Index, with: Vec<u8>, cut: prop::sample::Index) {
        let good = signed();
        let bytes = good.as_bytes();
        let at = at.index(bytes.len());
        let end = at + cut.index(bytes.len() - at + 1);
        let mangled = [&bytes[..at], &with, &bytes[end..]].concat();
        let believed = Signed::parse(&mangled).and_then(|signed| signed.verify(MESH)).is_ok();
        prop_assert_eq!(believed, mangled == bytes);
    }

    #[test]
    fn what_is_parsed_has_one_encoding(at: prop::sample::Index, with: u8) {
        let mut bytes = signed().as_bytes().to_vec();
        let at = at.index(bytes.len());
        bytes[at] = with;
        if let Ok(parsed) = Signed::parse(&bytes) {
            let Signed { mesh, node, stamp, said, .. } = parsed;
            let again = postcard::to_stdvec(&Content { format: FORMAT, mesh, node, stamp, said }).unwrap();
            prop_assert_eq!(&again, &bytes[..bytes.len() - SIGNATURE_BYTES]);
        }
    }
}
