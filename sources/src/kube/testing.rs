//! For tests: readers of what servers and plugins answer.

pub use crate::kube::{
    client::has_credentials,
    watch::{decode_item, read_answer},
};
