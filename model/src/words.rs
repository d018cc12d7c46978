//! Enums whose values are words.

/// Gives an enum `ALL`, in this order, `as_str`, `Display`, and `FromStr` if it is asked for.
#[doc(hidden)]
#[macro_export]
macro_rules! words {
    ($type:ident { $($variant:ident = $word:literal),+ $(,)? }) => {
        impl $type {
            /// Every value, in order.
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            /// The word for the value.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }

        impl ::std::fmt::Display for $type {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
    ($type:ident: FromStr { $($words:tt)+ }) => {
        $crate::words! { $type { $($words)+ } }

        impl ::std::str::FromStr for $type {
            type Err = ();

            /// Reads a word of `as_str`.
            fn from_str(text: &str) -> Result<Self, ()> {
                Self::ALL.into_iter().find(|value| value.as_str() == text).ok_or(())
            }
        }
    };
}
