//! The shared library as `scripts/build-dropin` makes it: its names and versions, against the distribution's libraries.

use std::{
    collections::BTreeSet,
    env, fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::OnceLock,
};

/// Debian's, by which programs were linked.
const THEIRS: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];

fn said(output: &Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{}\n{out}{err}", output.status)
}

/// The library, built now if it has to be.
fn library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/build-dropin");
        let output = Command::new(script).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())
    })
}

/// Says why a test is skipped. It is written past the test harness, which would not show it.
fn skip(why: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {why}");
}

/// Whether a program can be run.
fn there(program: &str) -> bool {
    let there = Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
    if !there {
        skip(&format!("no {program}"));
    }
    there
}

/// What a library exports, as `name@version`.
fn exports(file: &Path) -> BTreeSet<String> {
    let output = Command::new("readelf").args(["-W", "--dyn-syms"]).arg(file).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    let columns = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    columns
        .filter(|columns| columns.len() >= 8 && columns[6] != "UND" && columns[6] != "ABS")
        .filter(|columns| columns[7].contains('@'))
        .map(|columns| columns[7].replace("@@", "@"))
        .collect()
}

#[test]
fn whatever_the_distribution_exports_is_there() {
    if !there("readelf") {
        return;
    }
    let ours = exports(library());
    for name in THEIRS {
        let places = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
        let Some(file) = places.iter().map(|place| Path::new(place).join(name)).find(|file| file.exists())
        else {
            skip(&format!("no {name} to compare with"));
            continue;
        };
        let theirs = exports(&file);
        assert!(theirs.len() > 50, "{} seems to export {} names only", file.display(), theirs.len());
        let missing: Vec<_> = theirs.difference(&ours).collect();
        assert!(missing.is_empty(), "{name} has more: {missing:?}");
    }
}

#[test]
fn every_export_is_named() {
    if !there("readelf") {
        return;
    }
    let unnamed: Vec<_> = exports(library())
        .into_iter()
        .filter(|name| !name.contains("@IBVERBS_") && !name.contains("@RDMACM_"))
        .collect();
    assert!(unnamed.is_empty(), "{unnamed:?}");
}

#[test]
fn two_names_are_one_library_with_versions() {
    if !there("gcc") {
        return;
    }
    let place = env::temp_dir().join(format!("rxe-abi-names-{}", std::process::id()));
    fs::create_dir_all(&place).unwrap();
    let program = place.join("names");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/names.c");
    let built =
        Command::new("gcc").args(["-Wall", "-Werror", "-o"]).arg(&program).arg(source).arg("-ldl").output();
    let built = built.unwrap();
    assert!(built.status.success(), "{}", said(&built));
    let verbs = library();
    let cm = verbs.with_file_name(THEIRS[1]);
    let output = Command::new(&program).arg(verbs).arg(&cm).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));

    // The check can fail: a copy is another library.
    let copy = place.join(THEIRS[1]);
    fs::copy(verbs, &copy).unwrap();
    let output = Command::new(&program).arg(verbs).arg(&copy).output().unwrap();
    fs::remove_dir_all(&place).unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("two libraries"), "{}", said(&output));
}

/// Devices are looked for when the first id needs one, and not by each: that takes longer than all the rest of a connection.
#[test]
fn the_system_is_asked_for_its_devices_once() {
    if !there("gcc") {
        return;
    }
    let place = env::temp_dir().join(format!("rxe-abi-asks-{}", std::process::id()));
    fs::create_dir_all(&place).unwrap();
    let program = place.join("asks");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/asks.c");
    let mut gcc = Command::new("gcc");
    let built =
        gcc.args(["-Wall", "-Werror", "-rdynamic", "-o"]).arg(&program).arg(source).arg("-ldl").output();
    let built = built.unwrap();
    assert!(built.status.success(), "{}", said(&built));
    let verbs = library();
    let mut asks = Command::new(&program);
    let output =
        asks.arg(verbs).arg(verbs.with_file_name(THEIRS[1])).env("RXE_SERVICE", "off").output().unwrap();
    fs::remove_dir_all(&place).unwrap();
    if output.status.code() == Some(77) {
        skip("no network namespace may be made here");
        return;
    }
    assert!(output.status.success(), "{}", said(&output));
}

/// glibc unwinds a cancelled thread's stack, and Rust's frames end the process then.
#[test]
fn threads_that_wait_may_be_cancelled() {
    program_on_ours("cancelled", &[]);
}

/// OpenSM's threads that receive are cancelled.
#[test]
fn threads_that_wait_for_management_datagrams_may_be_cancelled() {
    program_on_ours("umad_cancelled", &[]);
}

/// A thread that waits goes on waiting after a handler with SA_RESTART.
#[test]
fn signals_interrupt_waits_as_they_interrupt_reads() {
    program_on_ours("signals", &[]);
}

/// The numbers that a kernel device gives; scripts/compat compares them with one.
#[test]
fn wrong_calls_give_the_numbers_of_a_kernel_device() {
    program_on_ours("wrong", &[]);
    program_on_ours("wrong_cm", &["here=10.66.0.9"]);
    program_with("wrong_cm", &["here=10.66.1.1"], SECOND_INTERFACE);
}

#[test]
fn what_newer_libraries_have() {
    program_on_ours("newer", &[]);
}

#[test]
fn events_say_what_those_of_a_kernel_say() {
    program_on_ours("told", &["10.66.0.9"]);
}

#[test]
fn queries_answer_what_is_so() {
    program_on_ours("answers", &[]);
}

/// Programs close descriptors that they do not know, and open files.
#[test]
fn the_file_of_a_program_is_left_alone() {
    program_on_ours("strangers", &[]);
}

#[test]
fn endpoints_are_what_they_were_made_of() {
    program_on_ours("endpoints", &["10.66.0.9"]);
}

#[test]
fn queue_pairs_of_refused_connections_are_flushed() {
    program_on_ours("refused", &["10.66.0.9"]);
}

#[test]
fn two_threads_use_a_completion_queue() {
    program_on_ours("threads", &[]);
}

#[test]
fn forked_children_do_not_wait_for_threads_of_the_parent() {
    program_on_ours("children", &[]);
}

#[test]
fn scatter_elements_may_be_anywhere() {
    program_on_ours("packed", &[]);
}

#[test]
fn rsockets_of_a_program_of_c() {
    program_on_ours("rsockets", &[]);
    // Otherwise the system keeps so few packets for an address that it looks for that no socket is full.
    let keeps_more = "echo 10000000 > /proc/sys/net/ipv4/neigh/rxe-a/unres_qlen_bytes";
    program_with("rsockets", &["10.66.1.77"], &format!("{SECOND_INTERFACE} && {keeps_more}"));
}

/// A program with librspreload, and this in its environment.
fn preloaded(environment: &str, name: &str) {
    let [rspreload, dropin] =
        ["librspreload.so", THEIRS[1]].map(|name| library().with_file_name(name).display().to_string());
    let tool = format!("env {environment} LD_PRELOAD={rspreload}:{dropin}");
    program_under(&tool, name, &[], "true");
}

/// Connections by TCP keep what the program has set, and its ways to wait know rsockets.
#[test]
fn programs_that_know_nothing_of_rdma() {
    preloaded("", "preloaded");
}

#[test]
fn programs_that_know_nothing_of_rdma_wait() {
    preloaded("", "preloaded_waits");
}

/// What they close and copy is theirs, and what their children do is not.
#[test]
fn programs_that_know_nothing_of_rdma_close_and_copy() {
    preloaded("", "preloaded_numbers");
}

/// Connections that become rsockets at their first use are used by several threads at once.
#[test]
fn programs_that_know_nothing_of_rdma_fork_and_have_threads() {
    preloaded("RDMAV_FORK_SAFE=1", "preloaded_forks");
}

#[test]
fn frames_come_to_whose_flows_fit() {
    program_on_ours("raw", &[]);
}

#[test]
fn ids_are_told_of_what_becomes_of_their_interface() {
    program_with("removed", &[], SECOND_INTERFACE);
}

#[test]
fn the_scope_of_a_link_local_address_decides_about_the_device() {
    let both = "ip link add rxe-a type veth peer name rxe-b && \
         ip link set rxe-a addrgenmode none && ip link set rxe-b addrgenmode none && \
         ip addr add 10.66.1.1/24 dev rxe-a && ip addr add 10.66.2.1/24 dev rxe-b && \
         ip link set rxe-a up && ip link set rxe-b up && \
         ip addr add fe80::1/64 dev rxe-a nodad && ip addr add fe80::1/64 dev rxe-b nodad";
    program_with("scopes", &[], both);
}

/// Descriptors that are watched by edges, and flags of receives.
#[test]
fn event_loops_hear_of_each_event() {
    program_on_ours("edges", &[]);
}

/// valgrind finds nothing wrong in what we do with a program's memory.
#[test]
fn valgrind_is_silent() {
    if there("valgrind") {
        program_under("valgrind -q --error-exitcode=9", "edges", &[], "true");
    }
}

/// Another one than lo, so that there are two devices.
const SECOND_INTERFACE: &str = "ip link add rxe-a type veth peer name rxe-b && ip addr add 10.66.1.1/24 dev rxe-a && \
     ip link set rxe-b up && ip link set rxe-a up";

/// Runs tests/c/NAME.c on the library, in a network namespace of its own, which has 10.66.0.9.
fn program_on_ours(name: &str, arguments: &[&str]) {
    program_with(name, arguments, "true");
}

/// The same, after a command in the namespace.
fn program_with(name: &str, arguments: &[&str], before: &str) {
    program_under("", name, arguments, before);
}

/// The same, by another program that runs it. Skipped where a namespace is not possible.
fn program_under(tool: &str, name: &str, arguments: &[&str], before: &str) {
    if !there("gcc") || !there("unshare") {
        return;
    }
    let kind = tool.split(' ').next().unwrap_or_default();
    let place = env::temp_dir().join(format!("rxe-abi-{kind}{name}-{}", std::process::id()));
    fs::create_dir_all(&place).unwrap();
    let program = place.join(name);
    let source = format!("{}/tests/c/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let mut gcc = Command::new("gcc");
    gcc.args(["-Wall", "-Werror", "-o"]).arg(&program).arg(source);
    if name.starts_with("umad") {
        gcc.arg(library().with_file_name("libibumad.so.3")).arg("-lpthread");
    } else {
        gcc.args(["-lrdmacm", "-libverbs", "-lpthread", "-ldl"]);
    }
    let built = gcc.output().unwrap();
    if said(&built).contains("No such file") {
        skip("no headers of libibverbs and librdmacm");
        return;
    }
    assert!(built.status.success(), "{}", said(&built));
    let alone = |command: &str| {
        let mut unshare = Command::new("unshare");
        let command =
            format!("ip link set lo up && ip addr add 10.66.0.9/32 dev lo && {before} && {command}");
        unshare.args(["--map-root-user", "--net", "sh", "-c", &command, "sh"]).arg(&program).args(arguments);
        unshare.env("LD_LIBRARY_PATH", library().parent().unwrap()).env("RXE_SERVICE", "off");
        unshare.output().unwrap()
    };
    if !alone("true").status.success() {
        skip(&format!("no network namespace may be made here, or not with: {before}"));
        return;
    }
    let output = alone(&format!("exec {tool} \"$@\""));
    fs::remove_dir_all(&place).unwrap();
    assert!(output.status.success(), "{}", said(&output));
}

/// Python wheels bring renamed copies of the libraries; what is preloaded comes before them.
#[test]
fn a_program_linked_to_renamed_copies_gets_ours() {
    if !there("gcc") {
        return;
    }
    let system = Path::new("/usr/lib").join(format!("{}-linux-gnu", env::consts::ARCH));
    if !THEIRS.iter().all(|name| system.join(name).exists()) {
        skip("no libraries of Debian's to copy");
        return;
    }
    let place = env::temp_dir().join(format!("rxe-abi-copied-{}", std::process::id()));
    fs::create_dir_all(&place).unwrap();
    let gcc = |arguments: &[&str]| {
        let output = Command::new("gcc").args(arguments).current_dir(&place).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
    };
    // The linker takes the name from what it is given: something with that name and the two functions.
    let copies = ["libibverbs-1de1263b.so.1", "librdmacm-2ef4a10c.so.1"];
    let functions = [("ibv_get_device_list", "IBVERBS_1.1"), ("rdma_create_event_channel", "RDMACM_1.0")];
    for ((copy, (function, version)), original) in copies.iter().zip(functions).zip(THEIRS) {
        fs::write(place.join("stub.c"), format!("void {function}(void) {{}}\n")).unwrap();
        fs::write(place.join("stub.map"), format!("{version} {{ global: {function}; local: *; }};\n"))
            .unwrap();
        let soname = format!("-Wl,-soname,{copy}");
        gcc(&["-shared", "-o", original, "stub.c", &soname, "-Wl,--version-script=stub.map"]);
        fs::copy(system.join(original), place.join(copy)).unwrap();
    }
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/copied.c");
    gcc(&["-Wall", "-Werror", "-o", "copied", source, THEIRS[0], THEIRS[1], "-ldl"]);
    let goes_to = |preloaded: Option<&Path>| {
        let mut command = Command::new(place.join("copied"));
        command.env_clear().env("LD_LIBRARY_PATH", &place);
        if let Some(file) = preloaded {
            command.env("LD_PRELOAD", file);
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        String::from_utf8(output.stdout).unwrap().lines().map(PathBuf::from).collect::<Vec<_>>()
    };
    assert_eq!(goes_to(None), copies.map(|copy| place.join(copy)));
    assert_eq!(goes_to(Some(library())), [library(), library()]);
    fs::remove_dir_all(&place).unwrap();
}
