//! For tests: readers of what servers and plugins answer.

pub use crate::{
    client::has_credentials,
    watch::{decode_item, read_answer},
};
