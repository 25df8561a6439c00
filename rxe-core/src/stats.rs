//! Counters by reason: what every drop, retry and refusal is called.

macro_rules! counters {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name { $($(#[$field_doc])* pub $field: u64),* }

        impl $name {
            /// Every counter with its name, in declaration order.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($field), self.$field)),*].into_iter()
            }

            /// The sums of both.
            #[must_use]
            pub const fn plus(self, other: Self) -> Self {
                Self { $($field: self.$field.wrapping_add(other.$field)),* }
            }
        }
    };
}

counters!(
    /// Counters of one queue pair.
    QpStats {
        /// Packets sent, retransmissions included.
        packets_sent,
        /// Packets accepted.
        packets_received,
        /// Bytes of payload sent, retransmissions included.
        bytes_sent,
        /// Bytes of payload accepted.
        bytes_received,
        /// Request packets sent again.
        retransmitted,
        /// Times the retransmission timer ran out.
        timeouts,
        /// Times requests were sent again because the peer was silent for longer than usual.
        probes,
        /// PSN sequence NAKs received.
        psn_naks_received,
        /// PSN sequence NAKs sent.
        psn_naks_sent,
        /// RNR NAKs received.
        rnr_naks_received,
        /// RNR NAKs sent.
        rnr_naks_sent,
        /// Other NAKs sent: requests refused.
        refusals_sent,
        /// Requests received that had been executed before.
        duplicates,
        /// Responses that came late, twice or out of order.
        responses_ignored,
        /// READ responses and atomic results that came after a gap: an earlier response was lost.
        implied_naks,
        /// Packets dropped because the queue pair receives nothing in its state.
        dropped_state,
        /// Packets dropped because their addresses are not the peer's.
        dropped_address,
        /// Packets dropped because they came by RoCEv1 and this queue pair's GID is one of RoCEv2, or the reverse.
        dropped_gid_type,
        /// Packets dropped because of their partition key.
        dropped_pkey,
        /// Datagrams dropped because of their Q_Key.
        dropped_qkey,
        /// Packets dropped because their opcode belongs to another service.
        dropped_service,
        /// Requests dropped because an earlier packet is missing.
        dropped_out_of_order,
        /// Unreliable messages dropped because no receive was posted.
        dropped_no_receive,
        /// Unreliable messages dropped because they broke a rule or their access was refused.
        dropped_refused,
        /// Datagrams too long for their receive.
        dropped_length,
        /// Congestion notifications received.
        cnps_received,
        /// Congestion notifications sent, because marked packets arrived.
        cnps_sent,
    }
);

counters!(
    /// Counters of an endpoint (a port as one process sees it).
    PortStats {
        /// Packets sent.
        packets_sent,
        /// Batches in which they left.
        batches_sent,
        /// Bytes sent, BTH to ICRC.
        bytes_sent,
        /// Packets received, dropped ones included.
        packets_received,
        /// Runs in which they arrived: packets that the system had merged, or single ones.
        runs_received,
        /// Bytes received, BTH to ICRC.
        bytes_received,
        /// Dropped: shorter than its headers.
        dropped_short,
        /// Dropped: unknown opcode.
        dropped_opcode,
        /// Dropped: malformed otherwise.
        dropped_malformed,
        /// Dropped: ICRC wrong.
        dropped_icrc,
        /// Dropped: IPv4 without "don't fragment", which a socket cannot check safely and no RoCE peer sends.
        dropped_fragmentable,
        /// Dropped: no such queue pair.
        dropped_no_qp,
        /// Dropped: the QPN belongs to another slot of this host.
        dropped_other_slot,
        /// Dropped: no member of the multicast group.
        dropped_no_group,
        /// Dropped by a queue pair; its own counters say why.
        dropped_by_qp,
        /// Packets that arrived with a congestion mark.
        ecn_marked,
    }
);

counters!(
    /// Counters of one address, or of one virtual lane, of an endpoint. The DSCP of an arriving packet tells its lane.
    TrafficStats {
        /// Packets sent.
        packets_sent,
        /// Batches in which they left.
        batches_sent,
        /// Bytes sent, BTH to ICRC.
        bytes_sent,
        /// Packets received, dropped ones included.
        packets_received,
        /// Bytes received, BTH to ICRC.
        bytes_received,
    }
);
