//! The report of the checks, as text and as JSON.

use std::{error::Error, fmt, process::ExitCode};

use serde::{Serialize, Serializer};
use switchyard_core::{error::ErrorChain, explain::Printable, model::Code};

use crate::printable::counted;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Level {
    /// Some traffic is lost, or may be.
    Warning,
    /// Traffic of Services is lost.
    Error,
}

impl Level {
    fn as_str(self) -> &'static str {
        match self {
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// A finding of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    #[serde(serialize_with = "as_text")]
    pub code: Code,
    pub level: Level,
    /// The consequence, in one sentence without a full stop.
    pub finding: String,
    pub because: String,
    pub remedy: String,
}

fn as_text<S: Serializer>(code: &Code, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(code.as_str())
}

/// The findings of a check that was made, of which there may be none.
pub type Outcome = Result<Vec<Finding>, NotMade>;

/// The reason why a check could not be made, in words.
#[derive(Clone, Debug)]
pub struct NotMade(pub String);

impl<E: Error + 'static> From<E> for NotMade {
    fn from(error: E) -> Self {
        Self(ErrorChain(&error).to_string())
    }
}

/// A check that could not be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NotChecked {
    pub check: &'static str,
    pub reason: String,
}

/// The results of all checks.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub node: String,
    /// The findings, errors first.
    pub findings: Vec<Finding>,
    /// The checks that found nothing.
    pub passed: Vec<&'static str>,
    /// The checks that could not be made.
    pub not_checked: Vec<NotChecked>,
}

impl Report {
    pub fn new(node: &str) -> Self {
        Self { node: node.to_owned(), ..Self::default() }
    }

    /// Adds the result of a check.
    pub fn add(&mut self, check: &'static str, outcome: Outcome) {
        match outcome {
            Ok(found) if found.is_empty() => self.passed.push(check),
            Ok(found) => self.findings.extend(found),
            Err(NotMade(reason)) => self.not_checked.push(NotChecked { check, reason }),
        }
        self.findings.sort_by_key(|finding| (std::cmp::Reverse(finding.level), finding.code));
    }

    /// The exit status: 0 without findings, 1 with warnings, 2 with errors.
    pub fn exit_code(&self) -> ExitCode {
        match self.findings.iter().map(|finding| finding.level).max() {
            None => ExitCode::SUCCESS,
            Some(Level::Warning) => ExitCode::from(1),
            Some(Level::Error) => ExitCode::from(2),
        }
    }

    fn count(&self, level: Level) -> String {
        let count = self.findings.iter().filter(|finding| finding.level == level).count();
        counted(count, level.as_str())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [errors, warnings] = [Level::Error, Level::Warning].map(|level| self.count(level));
        let (node, passed) = (Printable(&self.node), counted(self.passed.len(), "check"));
        write!(f, "{node}: {errors}, {warnings}, {passed} passed")?;
        if !self.not_checked.is_empty() {
            write!(f, ", {} not made", self.not_checked.len())?;
        }
        writeln!(f, ". Nothing was changed.")?;
        for Finding { code, level, finding, because, remedy } in &self.findings {
            writeln!(f, "{code} {:<7}  {}", level.as_str(), Printable(finding))?;
            writeln!(f, "                  because {}", Printable(because))?;
            writeln!(f, "                  remedy: {}", Printable(remedy))?;
        }
        if !self.passed.is_empty() {
            writeln!(f, "passed            {}", self.passed.join(", "))?;
        }
        for NotChecked { check, reason } in &self.not_checked {
            writeln!(f, "not checked       {check}: {}", Printable(reason))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(code: &'static str, level: Level) -> Finding {
        Finding {
            code: Code::new(code),
            level,
            finding: "Table \u{1b}[31mx drops".to_owned(),
            because: "it is so".to_owned(),
            remedy: "do not".to_owned(),
        }
    }

    #[test]
    fn a_report_begins_with_a_sentence_and_errors_come_first() {
        let mut report = Report::new("node-1");
        assert_eq!(
            report.to_string(),
            "node-1: 0 errors, 0 warnings, 0 checks passed. Nothing was changed.\n"
        );
        report.add("conntrack", Err(NotMade("needs CAP_NET_ADMIN".to_owned())));
        report.add("ports", Ok(Vec::new()));
        assert_eq!(report.exit_code(), ExitCode::SUCCESS);
        report.add("one", Ok(vec![finding("SWY9901", Level::Warning)]));
        assert_eq!(report.exit_code(), ExitCode::from(1));
        report.add("two", Ok(vec![finding("SWY9902", Level::Error)]));
        assert_eq!(report.exit_code(), ExitCode::from(2));
        assert_eq!(
            report.to_string(),
            "node-1: 1 error, 1 warning, 1 check passed, 1 not made. Nothing was changed.\n\
             SWY9902 error    Table \\u{1b}[31mx drops\n\
             \x20                 because it is so\n\
             \x20                 remedy: do not\n\
             SWY9901 warning  Table \\u{1b}[31mx drops\n\
             \x20                 because it is so\n\
             \x20                 remedy: do not\n\
             passed            ports\n\
             not checked       conntrack: needs CAP_NET_ADMIN\n"
        );
    }
}
