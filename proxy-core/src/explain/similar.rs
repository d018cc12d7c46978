//! Names that may have been meant.

use crate::model::ServiceName;

/// The most names that are offered.
const MOST: usize = 3;

/// Returns a few names that resemble `wanted`: the same name in another namespace, or one that
/// differs in two adjacent characters at most. Takes time in proportion to the names.
pub(super) fn similar<'n>(
    wanted: &ServiceName,
    names: impl Iterator<Item = &'n ServiceName>,
) -> Vec<ServiceName> {
    let resembles = |name: &&ServiceName| {
        name.name() == wanted.name()
            || name.namespace() == wanted.namespace() && is_near(name.name(), wanted.name())
    };
    let mut found: Vec<ServiceName> = names.filter(resembles).cloned().collect();
    found.sort_unstable();
    found.truncate(MOST);
    found
}

/// Whether two texts are equal but for two adjacent characters: missing, added or others.
fn is_near(a: &str, b: &str) -> bool {
    let (mut a, mut b) = (a.as_bytes(), b.as_bytes());
    while let ([x, rest_a @ ..], [y, rest_b @ ..]) = (a, b)
        && x == y
    {
        (a, b) = (rest_a, rest_b);
    }
    while let ([rest_a @ .., x], [rest_b @ .., y]) = (a, b)
        && x == y
    {
        (a, b) = (rest_a, rest_b);
    }
    a.len() <= 2 && b.len() <= 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_pen_is_near() {
        for (a, b) in [("cart", "carr"), ("cart", "crat"), ("cart", "cart2"), ("cart", "cat")] {
            assert!(is_near(a, b) && is_near(b, a), "{a} {b}");
        }
        assert!(
            !is_near("cart", "card-api") && !is_near("cart", "web") && !is_near("abcd", "xbcy")
        );
    }

    #[test]
    fn another_namespace_is_offered() {
        let names = ["shop/cart", "team/cart", "team/carts", "shop/carp", "shop/web"];
        let names = names.map(|name| {
            let (namespace, name) = name.split_once('/').unwrap();
            ServiceName::new(namespace, name)
        });
        let found = similar(&ServiceName::new("shop", "cars"), names.iter());
        assert_eq!(found, [ServiceName::new("shop", "carp"), ServiceName::new("shop", "cart")]);
        let found = similar(&ServiceName::new("prod", "cart"), names.iter());
        assert_eq!(found, [ServiceName::new("shop", "cart"), ServiceName::new("team", "cart")]);
    }
}
