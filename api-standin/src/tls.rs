//! A certificate authority and a server certificate of the stand-in's own.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        self, ServerConfig,
        crypto::ring,
        pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
    },
};

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A certificate cannot be made.
    #[error("cannot make a certificate")]
    Certificate(#[from] rcgen::Error),
    /// The certificate is not accepted.
    #[error("cannot configure TLS")]
    Config(#[from] rustls::Error),
}

/// What a server needs, and what its clients need to trust it.
pub(crate) struct Identity {
    pub(crate) acceptor: TlsAcceptor,
    /// The authority's certificate.
    pub(crate) ca_pem: String,
}

impl Identity {
    /// A new authority, and a server certificate for these names and addresses.
    pub(crate) fn new(names: Vec<String>) -> Result<Self, TlsError> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::CommonName, "api-standin authority");
        let key = KeyPair::generate()?;
        let ca_pem = params.self_signed(&key)?.pem();
        let authority = Issuer::new(params, key);

        let mut params = CertificateParams::new(names)?;
        params.distinguished_name.push(DnType::CommonName, "api-standin");
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &authority)?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.into()], key)?;
        Ok(Self { acceptor: Arc::new(config).into(), ca_pem })
    }
}
