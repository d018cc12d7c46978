//! Explains where the traffic of a Service goes on this node, and why it does not.
//!
//! A [`Question`] is about a Service, or about an address and port, with or without a client.
//! [`explain`] answers it from what is [`Known`] of the node and its Services, which a
//! [`Tracker`](crate::track::Tracker) has, and a [`Picture`] that was taken of one. Nothing here
//! decides where traffic goes: the resolved state is read, and each endpoint that a pool does not
//! have gets the reason from the function that left it out.
//!
//! An [`Explanation`] prints as text, and is serialized with the feature `serde`.

mod answer;
mod cause;
mod client;
mod explanation;
mod facts;
mod findings;
mod names;
mod note;
mod others;
mod printable;
mod question;
mod running;
mod similar;
mod text;

pub use self::{
    answer::explain,
    client::{Client, Clients, Route, RouteEnd, Sees},
    explanation::{
        EndpointLine, Explanation, Finding, FrontendLine, KernelCheck, LastChange, Verdict,
    },
    facts::{
        EndpointState, Known, KnownEndpoint, KnownNode, KnownPort, KnownService, LostFrontend,
        Picture, Whereabouts,
    },
    names::EndpointNames,
    note::Note,
    others::{ChainClients, ClosedChain},
    printable::Printable,
    question::{Question, QuestionError},
    running::FlowCounts,
    text::age,
};
