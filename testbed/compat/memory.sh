# shellcheck shell=bash disable=SC2154,SC2086
# Part of scripts/compat: both ends on one host, with what they send to each other in memory that they share.

run_options="--link memory"
two ibv_rc_pingpong -g 0 -c -n 200
two ibv_uc_pingpong -g 0 -c -n 200
two ib_send_bw $few
two ib_send_lat $few -e
two ib_write_bw $few -q 4
two ib_read_bw $few -s 1000000
two ib_atomic_bw $few
cm 0x1061c06 "rping -s -a 127.0.0.1 -C 10 -V" "rping -c -a 127.0.0.1 -C 10 -V"
run_options=
