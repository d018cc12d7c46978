//! backend-nft
