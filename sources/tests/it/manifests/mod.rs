mod examples;
mod source;
