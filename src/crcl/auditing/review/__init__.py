"""What people say of pairs in review, and what that tells about an audit."""
