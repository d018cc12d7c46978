//! The configuration as others meet it: any text that is read, and the table of flags.

mod corpus;
mod flags;
