//! The command line as a shell and a reader need it: completions, and a manual page.

use clap::{Arg, ArgMatches, Command, builder::PossibleValuesParser, value_parser};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::config::flags::{Kind, table::FLAGS};

const SHELL: &str = "shell";

/// Returns the subcommands whose answer is a text about the command line.
pub fn subcommands() -> [Command; 2] {
    let shell = Arg::new(SHELL)
        .value_name("SHELL")
        .required(true)
        .value_parser(value_parser!(Shell))
        .help("The shell that is to complete flags and words");
    [
        Command::new("completions").about("Print a shell's completions of this program").arg(shell),
        Command::new("man").about("Print the manual page, for man -l"),
    ]
}

/// Returns the text that one of these subcommands requests about the program's whole command.
pub fn text(matches: &ArgMatches, command: Command) -> String {
    let mut text = Vec::new();
    let shell = matches.try_get_one::<Shell>(SHELL).ok().flatten();
    if let Some(shell) = shell {
        let name = command.get_name().to_owned();
        clap_complete::generate(*shell, &mut with_words(command), name, &mut text);
    } else {
        // Memory takes every write.
        let _ = Man::new(command).render(&mut text);
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// The command with the words that flags accept. The parser's command lacks them: clap would
/// reject other words with messages that are not pflag's.
fn with_words(command: Command) -> Command {
    FLAGS.iter().fold(command, |command, flag| match flag.kind {
        Kind::Word(words) => command
            .mut_arg(flag.name, |argument| argument.value_parser(PossibleValuesParser::new(words))),
        _ => command,
    })
}
