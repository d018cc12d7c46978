//! The form of the objects that the API server sends.

use hyper::{
    Response,
    header::{CONTENT_TYPE, HeaderValue},
};

/// The form in which the server is asked for objects. It may answer in JSON all the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContentType {
    /// `application/vnd.kubernetes.protobuf`, which costs client and server a fraction of JSON.
    #[default]
    Protobuf,
    /// `application/json`
    Json,
}

impl ContentType {
    /// Returns the form as a value of `Accept`. In JSON, the server is asked to leave out the
    /// largest part of most objects where it can (KEP-5958). Others ignore the parameter, and the
    /// last form is for one that does not. In protobuf, the part is skipped at no cost.
    pub(super) fn accepted(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Protobuf => "application/vnd.kubernetes.protobuf, application/json",
            Self::Json => "application/json;drop=metadata.managedFields, application/json",
        })
    }

    pub(super) fn of<B>(answer: &Response<B>) -> Self {
        let header = answer.headers().get(CONTENT_TYPE).map_or(&[][..], HeaderValue::as_bytes);
        match header.starts_with(b"application/vnd.kubernetes.protobuf") {
            true => Self::Protobuf,
            false => Self::Json,
        }
    }
}
