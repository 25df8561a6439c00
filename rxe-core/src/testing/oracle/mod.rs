//! A random user.
