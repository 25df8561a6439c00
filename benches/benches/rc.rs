//! What a packet of a reliable connection costs in the protocol core, on the side that asks and on the side that answers,
//! without a wire: times are of a message, throughput counts its packets (data only).

use benches::direct::{Direct, Op};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rxe_core::qp::Mtu;
use std::time::Duration;

fn rc(criterion: &mut Criterion) {
    for (mtu, size) in
        [(Mtu::M1024, 64 << 10), (Mtu::M4096, 64 << 10), (Mtu::M4096, 1 << 20), (Mtu::M4096, 64_u32)]
    {
        for op in Op::ALL {
            let name = format!("rc {} of {size} bytes, mtu {}", op.name(), mtu.bytes());
            let mut group = criterion.benchmark_group(name);
            group.throughput(Throughput::Elements(u64::from(size.div_ceil(mtu.bytes()))));
            for (side, role) in ["requester", "responder"].into_iter().enumerate() {
                let mut direct = Direct::new(mtu, size);
                direct.timed = true;
                group.bench_function(role, |bencher| {
                    bencher.iter_custom(|count| {
                        direct.spent = [Duration::ZERO; 2];
                        (0..count).for_each(|_| direct.message(op));
                        direct.spent[side]
                    });
                });
                direct.check();
            }
            group.finish();
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
    targets = rc
}
criterion_main!(benches);
