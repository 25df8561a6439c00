//! Fault-safe access to application memory.
