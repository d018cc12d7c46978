//! The users that a test can be, and their kubeconfigs.

/// A user of the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    /// A member of `system:masters`, who may do everything.
    Administrator,
    /// `system:kube-proxy`, to whom every API server binds the role `system:node-proxier` at its
    /// start.
    KubeProxy,
}

impl User {
    pub const ALL: [Self; 2] = [Self::Administrator, Self::KubeProxy];

    /// The name that the user is known by.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Administrator => "administrator",
            Self::KubeProxy => "system:kube-proxy",
        }
    }

    /// The token of the user. The server listens on loopback addresses alone, and lives as long as
    /// a test.
    fn token(self) -> &'static str {
        match self {
            Self::Administrator => "administrators-token",
            Self::KubeProxy => "kube-proxys-token",
        }
    }

    /// The name of the user's kubeconfig in the servers' directory.
    pub(crate) fn file(self) -> &'static str {
        match self {
            Self::Administrator => "administrator.kubeconfig",
            Self::KubeProxy => "kube-proxy.kubeconfig",
        }
    }

    /// The text of the user's kubeconfig, whose `authority` is a file with certificates.
    pub(crate) fn kubeconfig(self, url: &str, authority: &str) -> String {
        format!(
            "apiVersion: v1
kind: Config
current-context: test
contexts:
- {{name: test, context: {{cluster: test, user: test}}}}
clusters:
- {{name: test, cluster: {{server: \"{url}\", certificate-authority: \"{authority}\"}}}}
users:
- {{name: test, user: {{token: {}}}}}
",
            self.token()
        )
    }
}

/// The file of tokens that the API server reads: token, name, identity, groups.
pub(crate) fn tokens() -> String {
    let line = |user: User| {
        let groups = match user {
            User::Administrator => ",system:masters",
            User::KubeProxy => "",
        };
        format!("{},{},{}{groups}\n", user.token(), user.name(), user.name())
    };
    User::ALL.map(line).concat()
}
