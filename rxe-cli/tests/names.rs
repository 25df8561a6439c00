//! Devices in what vendors' programs show.

#[path = "common/mod.rs"]
mod common;
#[path = "../../rxe-verbs/tests/netns/mod.rs"]
mod netns;
#[path = "cm/stage.rs"]
#[allow(dead_code, reason = "the tests of the connection manager use the rest")]
mod stage;

use common::{failed, good, rxe, text};
use stage::Host;
use std::process::Command;

fn shown(host: &Host, command: Command) -> String {
    let output = host.output(command);
    good(&output);
    text(&output.stdout).to_owned()
}

#[test]
fn gids_are_shown_as_vendors_do() {
    let Some(host) = Host::new() else { return };
    let rows = |arguments: &str| {
        let printed = shown(&host, rxe(arguments));
        printed.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect::<Vec<Vec<_>>>()
    };
    let all = rows("show_gids");
    assert_eq!(all[0].iter().filter(|word| !word.is_empty()).count(), 7, "{all:?}");
    let v4 = all.iter().find(|row| row.get(3).is_some_and(|gid| gid.ends_with(":ffff:7f00:0001"))).unwrap();
    let wanted = ["rxe0", "1", &v4[2], "0000:0000:0000:0000:0000:ffff:7f00:0001", "127.0.0.1  ", "v2", "lo"];
    assert_eq!(*v4, wanted);
    assert_eq!(*all.last().unwrap(), [format!("n_gids_found={}", all.len() - 3)]);
    assert_eq!(rows("show_gids rxe0 1"), all);
    failed(&host.output(rxe("show_gids rxe0 2")), "no port 2");
    failed(&host.output(rxe("show_gids nope")), "no device is called nope");
}
