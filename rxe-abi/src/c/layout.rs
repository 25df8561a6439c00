//! A C compiler says how large the header's structures are and where their fields lie; ours must agree.
//!
//! Fields that stand for several of C's (a gap of functions that are never there) are checked by what follows them.

use super::{
    attr::{
        AhAttr, AllocDmAttr, AsyncEvent, CqInitAttrEx, FlowAttr, GlobalRoute, ModifyCqAttr,
        ParentDomainInitAttr, QpAttr, QpCap, QpInitAttr, QpInitAttrEx, QpOpenAttr, RwqTableInitAttr, SrqAttr,
        SrqInitAttr, SrqInitAttrEx, ValuesEx, WqAttr, WqInitAttr, XrcdInitAttr,
    },
    context::{Context, ContextOps, VerbsContext},
    device::{Device, DeviceAttr, DeviceAttrEx, GidEntry, PortAttr},
    object::{
        Ah, CompChannel, Cq, CqEx, Dm, Flow, Mr, Mw, Pd, PollFunctions, Qp, QpEx, RwqTable, Srq, Td, Wq,
        WrFunctions, Xrcd,
    },
    rdma::{
        AddrInfo, CmEvent, CmId, ConnParam, Ece, EventChannel, IbAddr, JoinAttr, PathRec, Route, UdParam,
    },
    work::{
        AtomicOperands, BindMw, DataBuf, Grh, MwBind, MwBindInfo, OpsWr, Rdma, RecvWr, SendWr, Sge, UdTarget,
        Wc, WcTmInfo,
    },
};
use core::mem::offset_of;
use std::{fs, io::Write as _, process::Command};

/// One number of the header: an expression in C, and ours.
struct Fact {
    c: String,
    ours: usize,
}

macro_rules! facts {
    // The C structure, ours with the way from its start, then fields: `ours = c` where the names differ.
    ($out:ident, $c:literal, $ours:ty, { $($field:ident $(= $name:literal)?),* $(,)? }) => {
        $out.push(Fact { c: format!("sizeof(struct {})", $c), ours: size_of::<$ours>() });
        facts!($out, fields $c, $ours, 0, { $($field $(= $name)?),* });
    };
    ($out:ident, fields $c:literal, $ours:ty, $base:expr, { $($field:ident $(= $name:literal)?),* $(,)? }) => {
        $({
            #[allow(unused_variables, reason = "shadowed where the names differ")]
            let name = stringify!($field);
            $(let name = $name;)?
            $out.push(Fact {
                c: format!("offsetof(struct {}, {name})", $c),
                ours: $base + offset_of!($ours, $field),
            });
        })*
    };
}

fn device_facts(out: &mut Vec<Fact>) {
    facts!(out, "ibv_device", Device, { _ops, node_type, transport_type, name, dev_name, dev_path, ibdev_path });
    facts!(out, "ibv_device_attr", DeviceAttr, {
        fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id, vendor_part_id, hw_ver, max_qp,
        max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom,
        max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom, max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd,
        max_mw, max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach,
        max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr, max_srq, max_srq_wr, max_srq_sge, max_pkeys,
        local_ca_ack_delay, phys_port_cnt,
    });
    facts!(out, "ibv_device_attr_ex", DeviceAttrEx, {
        orig_attr, comp_mask, odp_caps, completion_timestamp_mask, hca_core_clock, device_cap_flags_ex, tso_caps,
        rss_caps, max_wq_type_rq, packet_pacing_caps, raw_packet_caps, tm_caps, cq_mod_caps, max_dm_size,
        pci_atomic_caps, xrc_odp_caps, phys_port_cnt_ex,
    });
    facts!(out, "ibv_port_attr", PortAttr, {
        state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr,
        pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width,
        active_speed, phys_state, link_layer, flags, port_cap_flags2,
    });
    facts!(out, "ibv_gid_entry", GidEntry, { gid, gid_index, port_num, gid_type, ndev_ifindex });
}

fn object_facts(out: &mut Vec<Fact>) {
    facts!(out, "ibv_pd", Pd, { context, handle });
    facts!(out, "ibv_dm", Dm, { context, memcpy_to_dm, memcpy_from_dm, comp_mask, handle });
    facts!(out, "ibv_td", Td, { context });
    facts!(out, "ibv_xrcd", Xrcd, { context });
    facts!(out, "ibv_mr", Mr, { context, pd, addr, length, handle, lkey, rkey });
    facts!(out, "ibv_mw", Mw, { context, pd, rkey, handle, kind = "type" });
    facts!(out, "ibv_ah", Ah, { context, pd, handle });
    facts!(out, "ibv_comp_channel", CompChannel, { context, fd, refcnt });
    facts!(out, "ibv_srq", Srq, { context, srq_context, pd, handle, lock = "mutex", events_completed });
    facts!(out, "ibv_qp", Qp, {
        context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, lock = "mutex",
        events_completed,
    });
    facts!(out, fields "ibv_qp_ex", QpEx, 0, {
        qp_base, comp_mask, wr_id, wr_flags, functions = "wr_atomic_cmp_swp",
    });
    facts!(out, fields "ibv_qp_ex", WrFunctions, offset_of!(QpEx, functions), {
        wr_atomic_cmp_swp, wr_atomic_fetch_add, wr_bind_mw, wr_local_inv, wr_rdma_read, wr_rdma_write,
        wr_rdma_write_imm, wr_send, wr_send_imm, wr_send_inv, wr_send_tso, wr_set_ud_addr, wr_set_xrc_srqn,
        wr_set_inline_data, wr_set_inline_data_list, wr_set_sge, wr_set_sge_list, wr_start, wr_complete, wr_abort,
        wr_atomic_write,
    });
    facts!(out, "ibv_cq", Cq, {
        context, channel, cq_context, handle, cqe, lock = "mutex", comp_events_completed, async_events_completed,
    });
    facts!(out, "ibv_cq_ex", CqEx, { comp_mask, status, wr_id, functions = "start_poll" });
    facts!(out, fields "ibv_cq_ex", PollFunctions, offset_of!(CqEx, functions), {
        start_poll, next_poll, end_poll, read_opcode, read_vendor_err, read_byte_len, read_imm_data, read_qp_num,
        read_src_qp, read_wc_flags, read_slid, read_sl, read_dlid_path_bits, read_completion_ts, read_cvlan,
        read_flow_tag, read_tm_info, read_completion_wallclock_ns,
    });
}

fn context_facts(out: &mut Vec<Fact>) {
    facts!(out, "ibv_context_ops", ContextOps, {
        _compat_query_device, alloc_mw, bind_mw, dealloc_mw, _compat_create_cq, poll_cq, req_notify_cq,
        _compat_cq_event, post_srq_recv, _compat_create_qp, post_send, post_recv, _compat_create_ah,
    });
    facts!(out, "ibv_context", Context, {
        device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat,
    });
    facts!(out, "verbs_context", VerbsContext, {
        query_port, advise_mr, alloc_null_mr, read_counters, reg_dm_mr, alloc_dm, free_dm, modify_flow_action_esp,
        alloc_parent_domain, dealloc_td, alloc_td, modify_cq, post_srq_ops, query_rt_values, create_cq_ex,
        private = "priv", query_device_ex, destroy_flow = "ibv_destroy_flow",
        create_flow = "ibv_create_flow", open_qp, create_qp_ex, get_srq_num,
        create_srq_ex, open_xrcd, close_xrcd, sz, context,
    });
}

fn attribute_facts(out: &mut Vec<Fact>) {
    facts!(out, "ibv_flow_attr", FlowAttr, {
        comp_mask, kind = "type", size, priority, num_of_specs, port, flags,
    });
    facts!(out, "ibv_wq", Wq, {
        context, wq_context, pd, cq, wq_num, handle, state, wq_type, post_recv, lock = "mutex", events_completed, comp_mask,
    });
    facts!(out, "ibv_wq_init_attr", WqInitAttr<'_>, {
        wq_context, wq_type, max_wr, max_sge, pd, cq, comp_mask, create_flags,
    });
    facts!(out, "ibv_wq_attr", WqAttr, { attr_mask, wq_state, curr_wq_state, flags, flags_mask });
    facts!(out, "ibv_rwq_ind_table", RwqTable, { context, ind_tbl_handle, ind_tbl_num, comp_mask });
    facts!(out, "ibv_rwq_ind_table_init_attr", RwqTableInitAttr<'_>, { log_ind_tbl_size, ind_tbl, comp_mask });
    facts!(out, "ibv_flow", Flow, { comp_mask, context, handle });
    facts!(out, "ibv_global_route", GlobalRoute, { dgid, flow_label, sgid_index, hop_limit, traffic_class });
    facts!(out, "ibv_ah_attr", AhAttr, { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num });
    facts!(out, "ibv_srq_attr", SrqAttr, { max_wr, max_sge, srq_limit });
    facts!(out, "ibv_srq_init_attr", SrqInitAttr, { srq_context, attr });
    facts!(out, "ibv_srq_init_attr_ex", SrqInitAttrEx<'_>, {
        srq_context, attr, comp_mask, srq_type, pd, xrcd, cq, tm_cap,
    });
    facts!(out, "ibv_qp_cap", QpCap, { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data });
    facts!(out, "ibv_qp_init_attr", QpInitAttr<'_>, {
        qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all,
    });
    facts!(out, "ibv_qp_init_attr_ex", QpInitAttrEx<'_>, {
        qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, comp_mask, pd, xrcd, create_flags, max_tso_header, rwq_ind_tbl, rx_hash_function = "rx_hash_conf",
        rx_hash_key_len = "rx_hash_conf.rx_hash_key_len", rx_hash_key = "rx_hash_conf.rx_hash_key",
        rx_hash_fields_mask = "rx_hash_conf.rx_hash_fields_mask", source_qpn, send_ops_flags,
    });
    facts!(out, "ibv_qp_open_attr", QpOpenAttr<'_>, { comp_mask, qp_num, xrcd, qp_context, qp_type });
    facts!(out, fields "ibv_qp_attr", QpAttr, 0, {
        qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap,
        ah_attr, alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic,
        max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout,
    });
    out.push(Fact { c: "offsetof(struct ibv_qp_attr, rate_limit)".into(), ours: size_of::<QpAttr>() });
    facts!(out, "ibv_cq_init_attr_ex", CqInitAttrEx<'_>, {
        cqe, cq_context, channel, comp_vector, wc_flags, comp_mask, flags, parent_domain,
    });
    facts!(out, "ibv_xrcd_init_attr", XrcdInitAttr, { comp_mask, fd, oflags });
    facts!(out, "ibv_alloc_dm_attr", AllocDmAttr, { length, log_align_req, comp_mask });
    facts!(out, "ibv_async_event", AsyncEvent, { element, event_type });
    facts!(out, "ibv_values_ex", ValuesEx, { comp_mask, raw_clock });
    facts!(out, "ibv_parent_domain_init_attr", ParentDomainInitAttr<'_>, {
        pd, td, comp_mask, alloc, free, pd_context,
    });
    facts!(out, "ibv_modify_cq_attr", ModifyCqAttr, {
        attr_mask, cq_count = "moderate.cq_count", cq_period = "moderate.cq_period",
    });
}

fn work_facts(out: &mut Vec<Fact>) {
    facts!(out, "ibv_sge", Sge, { addr, length, lkey });
    facts!(out, "ibv_data_buf", DataBuf, { addr, length });
    facts!(out, "ibv_mw_bind_info", MwBindInfo<'_>, { mr, addr, length, mw_access_flags });
    facts!(out, "ibv_mw_bind", MwBind<'_>, { wr_id, send_flags, bind_info });
    facts!(out, "ibv_send_wr", SendWr<'_>, {
        wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, wr, remote_srqn = "qp_type.xrc.remote_srqn",
        bind_mw,
    });
    let wr = offset_of!(SendWr<'_>, wr);
    facts!(out, fields "ibv_send_wr", Rdma, wr, { remote_addr = "wr.rdma.remote_addr", rkey = "wr.rdma.rkey" });
    facts!(out, fields "ibv_send_wr", AtomicOperands, wr, {
        remote_addr = "wr.atomic.remote_addr", compare_add = "wr.atomic.compare_add", swap = "wr.atomic.swap",
        rkey = "wr.atomic.rkey",
    });
    facts!(out, fields "ibv_send_wr", UdTarget<'_>, wr, {
        ah = "wr.ud.ah", remote_qpn = "wr.ud.remote_qpn", remote_qkey = "wr.ud.remote_qkey",
    });
    facts!(out, fields "ibv_send_wr", BindMw<'_>, offset_of!(SendWr<'_>, bind_mw), {
        mw = "bind_mw.mw", rkey = "bind_mw.rkey", bind_info = "bind_mw.bind_info",
    });
    facts!(out, "ibv_recv_wr", RecvWr<'_>, { wr_id, next, sg_list, num_sge });
    facts!(out, "ibv_ops_wr", OpsWr<'_>, {
        wr_id, next, opcode, flags, unexpected_cnt = "tm.unexpected_cnt", handle = "tm.handle",
        recv_wr_id = "tm.add.recv_wr_id", sg_list = "tm.add.sg_list", num_sge = "tm.add.num_sge", tag = "tm.add.tag",
        mask = "tm.add.mask",
    });
    facts!(out, "ibv_wc_tm_info", WcTmInfo, { tag, app_ctx = "priv" });
    facts!(out, "ibv_wc", Wc, {
        wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags, pkey_index, slid, sl,
        dlid_path_bits,
    });
    facts!(out, "ibv_grh", Grh, { version_tclass_flow, paylen, next_hdr, hop_limit, sgid, dgid });
}

fn rdma_facts(out: &mut Vec<Fact>) {
    facts!(out, "rdma_cm_id", CmId, {
        verbs, channel, context, qp, route, ps, port_num, event, send_cq_channel, send_cq, recv_cq_channel, recv_cq,
        srq, pd, qp_type,
    });
    facts!(out, "rdma_route", Route, {
        src = "addr.src_addr", dst = "addr.dst_addr", ib = "addr.addr.ibaddr", path_rec, num_paths,
    });
    facts!(out, "rdma_ib_addr", IbAddr, { sgid, dgid, pkey });
    facts!(out, "ibv_sa_path_rec", PathRec, {
        dgid, sgid, dlid, slid, raw_traffic, flow_label, hop_limit, traffic_class, reversible, numb_path, pkey, sl,
        mtu_selector, mtu, rate_selector, rate, packet_life_time_selector, packet_life_time, preference,
    });
    facts!(out, "rdma_event_channel", EventChannel, { fd });
    facts!(out, "rdma_conn_param", ConnParam, {
        private_data, private_data_len, responder_resources, initiator_depth, flow_control, retry_count,
        rnr_retry_count, srq, qp_num,
    });
    facts!(out, "ibv_ece", Ece, { vendor_id, options, comp_mask });
    facts!(out, "rdma_ud_param", UdParam, { private_data, private_data_len, ah_attr, qp_num, qkey });
    facts!(out, "rdma_cm_event", CmEvent, { id, listen_id, event, status, param });
    facts!(out, "rdma_addrinfo", AddrInfo, {
        ai_flags, ai_family, ai_qp_type, ai_port_space, ai_src_len, ai_dst_len, ai_src_addr, ai_dst_addr,
        ai_src_canonname, ai_dst_canonname, ai_route_len, ai_route, ai_connect_len, ai_connect, ai_next,
    });
    facts!(out, "rdma_cm_join_mc_attr_ex", JoinAttr, { comp_mask, join_flags, addr });
}

#[test]
fn structures_lie_as_the_header_says() {
    if !Command::new("gcc").arg("--version").output().is_ok_and(|done| done.status.success()) {
        let _ = writeln!(std::io::stderr(), "skipped: no gcc");
        return;
    }
    let mut facts = Vec::new();
    device_facts(&mut facts);
    object_facts(&mut facts);
    context_facts(&mut facts);
    attribute_facts(&mut facts);
    work_facts(&mut facts);
    rdma_facts(&mut facts);

    let dir = std::env::temp_dir().join(format!("rxe-abi-layout-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let lines: String = facts.iter().map(|fact| format!("    printf(\"%zu\\n\", {});\n", fact.c)).collect();
    let source = format!(
        "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\nint main(void) {{\n{lines}    return 0;\n}}\n"
    );
    let (file, program) = (dir.join("layout.c"), dir.join("layout"));
    fs::write(&file, source).unwrap();
    let built = Command::new("gcc").arg("-o").args([&program, &file]).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let said = String::from_utf8(Command::new(&program).output().unwrap().stdout).unwrap();
    fs::remove_dir_all(&dir).unwrap();

    let said: Vec<usize> = said.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(said.len(), facts.len());
    let wrong: Vec<String> = facts
        .iter()
        .zip(&said)
        .filter(|(fact, said)| fact.ours != **said)
        .map(|(fact, said)| format!("{} is {said}, ours {}", fact.c, fact.ours))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(facts.len() > 300, "only {} were compared", facts.len());
}
