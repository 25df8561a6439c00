//! `opensm.conf`: the options about quality of service and partitions, among several hundred.

use crate::{
    arbiter::{Entry, HighLimit, Tables},
    error::{FileError, Warning, Warnings},
    lanes::{Lanes, SL_COUNT, VL_NONE},
    number,
};

/// Most entries of an arbitration table (IBTA vol. 1, 7.6.9.1).
const MAX_ENTRIES: usize = 64;

/// The content of `opensm.conf`. `qos_ca_...` options are for hosts, and take precedence over the general `qos_...` options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// `qos`: whether service levels are assigned. OpenSM's default is FALSE.
    pub qos: bool,
    /// `qos_policy_file`.
    pub qos_policy_file: Option<String>,
    /// `partition_config_file`.
    pub partition_config_file: Option<String>,
    /// `allow_both_pkeys`: a port may be both a full and a limited member of a partition.
    pub allow_both_pkeys: bool,
    /// `subnet_timeout`: default lifetime of packets, 4.096 us << code, 0 to 31.
    pub packet_life: Option<u8>,
    /// `qos_max_vls`: number of lanes, 1, 2, 4, 8 or 15.
    pub max_vls: u8,
    /// `qos_sl2vl`, with existing lanes only.
    pub sl2vl: [u8; SL_COUNT],
    /// `qos_vlarb_high`, `qos_vlarb_low` and `qos_high_limit`.
    pub tables: Tables,
}

impl Default for Options {
    /// OpenSM's defaults.
    fn default() -> Self {
        Self {
            qos: false,
            qos_policy_file: None,
            partition_config_file: None,
            allow_both_pkeys: false,
            packet_life: None,
            max_vls: 15,
            sl2vl: Lanes::DEFAULT_SL2VL,
            tables: Tables::default(),
        }
    }
}

/// An option with a form for hosts and a general one.
#[derive(Clone, Copy, Default)]
struct Wish<'a> {
    general: Option<(usize, &'a str)>,
    of_hosts: Option<(usize, &'a str)>,
}

impl<'a> Wish<'a> {
    fn said(self) -> Option<(usize, &'a str)> {
        self.of_hosts.or(self.general)
    }
}

#[derive(Default)]
struct Wishes<'a> {
    max_vls: Wish<'a>,
    high_limit: Wish<'a>,
    vlarb_high: Wish<'a>,
    vlarb_low: Wish<'a>,
    sl2vl: Wish<'a>,
}

impl<'a> Wishes<'a> {
    fn of(&mut self, key: &str) -> Option<&mut Option<(usize, &'a str)>> {
        let general = key.strip_prefix("qos_")?;
        let (name, of_hosts) = match general.strip_prefix("ca_") {
            Some(name) => (name, true),
            None => (general, false),
        };
        let wish = match name {
            "max_vls" => &mut self.max_vls,
            "high_limit" => &mut self.high_limit,
            "vlarb_high" => &mut self.vlarb_high,
            "vlarb_low" => &mut self.vlarb_low,
            "sl2vl" => &mut self.sl2vl,
            _ => return None,
        };
        Some(if of_hosts { &mut wish.of_hosts } else { &mut wish.general })
    }
}

impl Options {
    /// Reads the file. Other options are ignored. A value `(null)`, which OpenSM writes, means the default.
    ///
    /// # Errors
    /// [`FileError`] for an invalid value.
    pub fn parse(text: &str) -> Result<(Self, Vec<Warning>), FileError> {
        let mut options = Self::default();
        let mut wishes = Wishes::default();
        let mut warnings = Warnings::default();
        for (line, text) in text.lines().enumerate().map(|(index, text)| (index + 1, text)) {
            let text = text.split('#').next().unwrap_or_default().trim();
            let (key, value) = text.split_once([' ', '\t']).map_or((text, ""), |(k, v)| (k, v.trim()));
            if key.is_empty() || value == "(null)" {
                continue;
            }
            if let Some(wish) = wishes.of(key) {
                *wish = Some((line, value));
                continue;
            }
            let name = || (!value.is_empty()).then(|| value.trim_matches('"').to_owned());
            match key {
                "qos" => options.qos = boolean(line, value)?,
                "allow_both_pkeys" => options.allow_both_pkeys = boolean(line, value)?,
                "qos_policy_file" => options.qos_policy_file = name(),
                "partition_config_file" => options.partition_config_file = name(),
                "subnet_timeout" => options.packet_life = Some(within(line, value, 31)?),
                _ if key.starts_with("qos_vlarb") || key.starts_with("qos_sl2vl") => {
                    let text = format!("{key} is no option of OpenSM, and is passed over");
                    warnings.push(line, text);
                }
                _ => {}
            }
        }
        options.heed(&wishes, &mut warnings)?;
        Ok((options, warnings.into_list()))
    }

    fn heed(&mut self, wishes: &Wishes<'_>, warnings: &mut Warnings) -> Result<(), FileError> {
        if let Some((line, value)) = wishes.max_vls.said() {
            let vls = within(line, value, 15)?;
            self.max_vls = match vls {
                0 => 15,
                1 | 2 | 4 | 8 | 15 => vls,
                _ => {
                    let reason = "a port has 1, 2, 4, 8 or 15 lanes (0 for the default, 15)";
                    return Err(FileError::new(line, value, reason));
                }
            };
        }
        // In OpenSM -1 means the default.
        if let Some((line, value)) = wishes.high_limit.said().filter(|(_, value)| *value != "-1") {
            self.tables.limit = HighLimit(within(line, value, 255)?);
        }
        if let Some((line, value)) = wishes.sl2vl.said() {
            self.sl2vl = sl2vl(line, value)?;
        }
        for vl in self.sl2vl.iter_mut().filter(|vl| **vl != VL_NONE) {
            *vl = fold(*vl, self.max_vls);
        }
        for (wish, table) in
            [(wishes.vlarb_high, &mut self.tables.high), (wishes.vlarb_low, &mut self.tables.low)]
        {
            if let Some((line, value)) = wish.said() {
                *table = entries(line, value, warnings)?;
            }
            for entry in table.iter_mut() {
                entry.vl = fold(entry.vl, self.max_vls);
            }
        }
        Ok(())
    }
}

/// The lane that replaces one that a port does not have. OpenSM takes the lower bits.
const fn fold(vl: u8, max_vls: u8) -> u8 {
    if max_vls == 15 { vl } else { vl & (max_vls - 1) }
}

fn boolean(line: usize, value: &str) -> Result<bool, FileError> {
    match value {
        "TRUE" => Ok(true),
        "FALSE" => Ok(false),
        _ => Err(FileError::new(
            line,
            value,
            "TRUE or FALSE is expected (OpenSM takes all but TRUE for FALSE)",
        )),
    }
}

fn within(line: usize, value: &str, max: u8) -> Result<u8, FileError> {
    let number = number::parse(value).map_err(|why| FileError::new(line, value, why))?;
    let fits = u8::try_from(number).ok().filter(|number| *number <= max);
    fits.ok_or_else(|| FileError::new(line, value, format!("0 to {max} is possible")))
}

fn sl2vl(line: usize, value: &str) -> Result<[u8; SL_COUNT], FileError> {
    let list: Vec<u8> =
        value.split(',').map(|vl| within(line, vl.trim(), VL_NONE)).collect::<Result<_, _>>()?;
    let count = list.len();
    list.try_into().map_err(|_| {
        FileError::new(
            line,
            value,
            format!("{count} lanes; one for each of the 16 service levels is expected"),
        )
    })
}

/// An arbitration table: lane:weight, ...
pub(crate) fn entries(line: usize, value: &str, warnings: &mut Warnings) -> Result<Vec<Entry>, FileError> {
    let mut list = Vec::new();
    for pair in value.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let Some((vl, weight)) = pair.split_once(':') else {
            return Err(FileError::new(line, pair, "lane:weight is expected"));
        };
        list.push(Entry { vl: within(line, vl.trim(), 14)?, weight: within(line, weight.trim(), 255)? });
    }
    if list.len() > MAX_ENTRIES {
        return Err(FileError::new(
            line,
            value,
            format!("{} entries; {MAX_ENTRIES} are possible", list.len()),
        ));
    }
    if list.iter().all(|entry| entry.weight == 0) {
        warnings.push(line, "no lane has a weight in this table");
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_and_what_is_not() {
        let text = "qos TRUE # yes\nguid 0x1\nqos_policy_file /etc/q.conf\npartition_config_file (null)\n\
                    qos_max_vls 8\nqos_high_limit 4\nqos_vlarb_high 0:64,12:32\nqos_sl2vl 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n\
                    qos_ca_high_limit 255\nsubnet_timeout 18\n";
        let (options, warnings) = Options::parse(text).unwrap();
        assert!(options.qos && warnings.is_empty());
        assert_eq!(options.qos_policy_file.as_deref(), Some("/etc/q.conf"));
        assert_eq!((options.partition_config_file, options.packet_life), (None, Some(18)));
        assert_eq!(options.sl2vl, [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 15]);
        assert_eq!(options.tables.high, [Entry { vl: 0, weight: 64 }, Entry { vl: 4, weight: 32 }]);
        assert_eq!(options.tables.limit, HighLimit(255));
        assert_eq!(Options::parse("").unwrap().0, Options::default());
    }

    #[test]
    fn mistakes_have_a_line_and_a_word() {
        for (text, says) in [
            ("\nqos yes", "line 2, at \"yes\""),
            ("qos_max_vls 3", "at \"3\": a port has"),
            ("qos_sl2vl 0,1", "2 lanes"),
            ("qos_sl2vl 0,1,16", "at \"16\": 0 to 15"),
            ("qos_vlarb_low 0:4,5", "at \"5\": lane:weight"),
            ("qos_vlarb_low 15:4", "at \"15\": 0 to 14"),
            ("qos_high_limit many", "at \"many\": a number"),
        ] {
            let error = Options::parse(text).unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
