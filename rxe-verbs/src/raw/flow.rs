//! Flows (ibv_create_flow): patterns over headers that say which frames a raw packet queue pair receives.

/// A header in an Ethernet frame that a pattern can compare.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layer {
    /// The Ethernet header: destination, source, type. 14 bytes.
    Ethernet,
    /// The IPv4 header without options. 20 bytes.
    Ipv4,
    /// The IPv6 header. 40 bytes.
    Ipv6,
    /// The ports of TCP over IPv4 or IPv6, in the first fragment. 4 bytes.
    Tcp,
    /// The ports of UDP over IPv4 or IPv6, in the first fragment. 4 bytes.
    Udp,
}

/// The bits that a header must have where the mask has ones. Value and mask are as long as the header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pattern {
    layer: Layer,
    value: Vec<u8>,
    mask: Vec<u8>,
}

impl Pattern {
    /// A pattern that matches any header of the layer.
    #[must_use]
    pub fn new(layer: Layer) -> Self {
        let len = match layer {
            Layer::Ethernet => 14,
            Layer::Ipv4 => 20,
            Layer::Ipv6 => 40,
            Layer::Tcp | Layer::Udp => 4,
        };
        Self { layer, value: vec![0; len], mask: vec![0; len] }
    }

    /// Adds a condition: the header's bytes from `at` on must be `value` under `mask`. Bytes beyond the header's end are
    /// ignored.
    #[must_use]
    pub fn with(mut self, at: usize, value: &[u8], mask: &[u8]) -> Self {
        for (place, (value, mask)) in (at..self.value.len()).zip(value.iter().zip(mask)) {
            (self.value[place], self.mask[place]) = (value & mask, *mask);
        }
        self
    }

    fn fits(&self, frame: &[u8]) -> bool {
        let Some(header) = start_of(self.layer, frame).and_then(|at| frame.get(at..at + self.value.len()))
        else {
            return false;
        };
        let all = header.iter().zip(&self.mask).zip(&self.value);
        all.fold(0, |wrong, ((byte, mask), value)| wrong | (byte & mask ^ value)) == 0
    }
}

/// The offset of a header in the frame; `None` if the frame has no such header.
fn start_of(layer: Layer, frame: &[u8]) -> Option<usize> {
    const IP: usize = 14;
    let kind = u16::from_be_bytes(*frame.get(12..)?.first_chunk()?);
    match layer {
        Layer::Ethernet => Some(0),
        Layer::Ipv4 => (kind == 0x0800).then_some(IP),
        Layer::Ipv6 => (kind == 0x86dd).then_some(IP),
        Layer::Tcp | Layer::Udp => {
            let (protocol, at) = match kind {
                0x0800 => {
                    let header = frame.get(IP..IP + 20)?;
                    // Later fragments have no ports.
                    let offset = u16::from_be_bytes([header[6], header[7]]) & 0x1fff;
                    (offset == 0).then_some((header[9], IP + usize::from(header[0] & 15) * 4))?
                }
                0x86dd => (*frame.get(IP + 6)?, IP + 40),
                _ => return None,
            };
            (protocol == if layer == Layer::Tcp { 6 } else { 17 }).then_some(at)
        }
    }
}

/// Which frames a queue pair receives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Flow {
    /// Frames that match all patterns.
    Fitting(Vec<Pattern>),
    /// All frames (IBV_FLOW_ATTR_ALL_DEFAULT, IBV_FLOW_ATTR_SNIFFER).
    All,
    /// Frames to multicast addresses (IBV_FLOW_ATTR_MC_DEFAULT).
    Groups,
}

impl Flow {
    pub(super) fn takes(&self, frame: &[u8]) -> bool {
        match self {
            Self::Fitting(patterns) => patterns.iter().all(|pattern| pattern.fits(frame)),
            Self::All => true,
            Self::Groups => frame.first().is_some_and(|byte| byte & 1 != 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ethernet, IPv4 with 4 bytes of options, UDP from port 1234 to 5678.
    fn frame() -> Vec<u8> {
        let mut frame =
            [&[1, 0x50, 0x56, 0x19, 0x20, 0xa7, 0x24, 0x8a, 7, 0xa5, 0x28, 0xc8, 8, 0][..], &[0; 32]]
                .concat();
        frame[14] = 0x46;
        frame[14 + 9] = 17;
        frame[14 + 12..14 + 20].copy_from_slice(&[1, 1, 1, 1, 2, 2, 2, 2]);
        frame[38..42].copy_from_slice(&[4, 0xd2, 0x16, 0x2e]);
        frame
    }

    #[test]
    fn headers_are_compared_under_their_masks() {
        let all = [0xff; 16];
        let ports = Pattern::new(Layer::Udp).with(2, &[0x16, 0x2e], &all);
        let source = Pattern::new(Layer::Ipv4).with(12, &[1, 1, 9, 9], &[0xff, 0xff, 0, 0]);
        let flow = |patterns: &[&Pattern]| Flow::Fitting(patterns.iter().map(|&p| p.clone()).collect());
        assert!(flow(&[&ports, &source, &Pattern::new(Layer::Ethernet)]).takes(&frame()));
        assert!(flow(&[]).takes(&frame()) && Flow::All.takes(&[]) && Flow::Groups.takes(&frame()));
        let other = Pattern::new(Layer::Udp).with(0, &[0x16, 0x2e], &all);
        for wrong in [other, Pattern::new(Layer::Tcp), Pattern::new(Layer::Ipv6)] {
            assert!(!flow(&[&ports, &wrong]).takes(&frame()), "{wrong:?}");
        }
    }

    #[test]
    fn what_is_cut_off_or_a_later_fragment_has_no_ports() {
        let udp = Flow::Fitting(vec![Pattern::new(Layer::Udp)]);
        for len in 0..42 {
            assert!(!udp.takes(&frame()[..len]), "{len}");
        }
        assert!(udp.takes(&frame()[..42]));
        let mut later = frame();
        later[14 + 7] = 1;
        assert!(!udp.takes(&later));
    }
}
