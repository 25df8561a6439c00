//! RDMA WRITE: one end puts a message straight into the other's memory. With immediate data the owner of that memory is
//! told; without, it would have to watch the last byte, which is always stored last.
//!
//! Both ends are in this process, over a network that is too. `rc_pingpong` explains how they are connected.

use rxe_verbs::{
    Access, Context, Mtu, Psn, Qp, QpChange, QpInit, QpState, QpType, RecvWr, Remote, SendOp, SendWr,
    WcExtra, net::InprocNet,
};
use std::{error::Error, time::Duration};

const SIZE: usize = 100_000;
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> Result<(), Box<dyn Error>> {
    let net = InprocNet::new();
    let writer = Context::open_inproc(&net, &["10.0.0.1".parse()?])?;
    let owner = Context::open_inproc(&net, &["10.0.0.2".parse()?])?;

    // The owner lends its memory out: peers that know its rkey may write to it.
    let owner_pd = owner.alloc_pd()?;
    let shared = owner_pd.alloc_mr(SIZE, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let owner_cq = owner.create_cq(16, None)?;
    let owner_qp = owner_pd.create_qp(&QpInit::new(QpType::Rc, &owner_cq))?;

    let writer_pd = writer.alloc_pd()?;
    let source = writer_pd.alloc_mr(SIZE, Access::empty())?;
    let writer_cq = writer.create_cq(16, None)?;
    let writer_qp = writer_pd.create_qp(&QpInit::new(QpType::Rc, &writer_cq))?;
    connect(&owner_qp, &writer_qp)?;
    connect(&writer_qp, &owner_qp)?;

    // What the owner tells the writer, in whatever way.
    let remote = Remote { addr: shared.addr(), rkey: shared.rkey() };

    // The immediate data uses up a receive; the message itself does not go there, so it needs no memory.
    owner_qp.post_recv(&RecvWr { wr_id: 1, sges: &[] })?;
    let message: Vec<u8> = (0..SIZE).map(|i| (i * i / 7) as u8).collect();
    source.write_at(0, &message)?;
    let imm = *b"done";
    writer_qp.post_send(&SendWr::new(2, SendOp::WriteImm(remote, imm), &[source.sge(0, SIZE as u32)]))?;

    let told = owner_cq.poll_within(PATIENCE)?.ok_or("the owner was not told")?;
    assert_eq!((told.extra, told.byte_len), (WcExtra::Immediate(imm), SIZE as u32));
    assert_eq!(shared.read_vec(0, SIZE)?, message);
    let done = writer_cq.poll_within(PATIENCE)?.ok_or("the writer was not answered")?;
    println!("{} bytes written; the owner saw {:?}, the writer {:?}", SIZE, told.opcode, done.status);
    Ok(())
}

/// To INIT, RTR, RTS.
fn connect(qp: &Qp, peer: &Qp) -> Result<(), Box<dyn Error>> {
    qp.modify(&QpChange {
        state: Some(QpState::Init),
        pkey_index: Some(0),
        port: Some(1),
        // The queue pair must permit it too, not only the memory.
        access: Some(Access::REMOTE_WRITE),
        ..QpChange::default()
    })?;
    qp.modify(&QpChange {
        state: Some(QpState::Rtr),
        av: Some(qp.context().address_vector(0, peer.context().gids().get(0))?),
        path_mtu: Some(Mtu::M4096),
        dest_qpn: Some(peer.qpn()),
        rq_psn: Some(Psn::new(0)),
        max_dest_rd_atomic: Some(1),
        min_rnr_timer: Some(12),
        ..QpChange::default()
    })?;
    qp.modify(&QpChange {
        state: Some(QpState::Rts),
        sq_psn: Some(Psn::new(0)),
        timeout: Some(14),
        retry_count: Some(7),
        rnr_retry: Some(7),
        max_rd_atomic: Some(1),
        ..QpChange::default()
    })?;
    Ok(())
}
