"""What Kafka's `RelationalSmokeTest.App` does: comments with the beginning of their article, articles with a count.

An article is its key, a time and a text; a comment has its article's key behind these. Both results have one field
more.
"""

import os
import struct

from actors import App, Context, aggregates

HEAD, LENGTH, LONG = struct.Struct(">iqi"), struct.Struct(">i"), struct.Struct(">q")
PREFIX_BYTES = 10

app = App(
    "RelationalSmokeTest", broker=os.environ["KAFKA_URL"], broker_session_timeout=6.0, broker_heartbeat_interval=0.5
)
# Keys are integers of Java, and bytes here; names that begin with in or out are what the driver looks for.
articles, comments, results_of_articles, results_of_comments, for_counts, for_comments, counts = (
    app.topic(name, key_type=bytes, value_type=bytes)
    for name in (
        "in-article",
        "in-comment",
        "out-augmented-article",
        "out-augmented-comment",
        "article-for-counts",
        "article-for-comments",
        "comment-count",
    )
)


@app.actor(articles)
async def copy(ctx: Context, article: bytes) -> None:
    """Send an article to both joins: a table has one."""
    ctx.send(for_counts, key=ctx.key, value=article)
    ctx.send(for_comments, key=ctx.key, value=article)


def article_of(comment: bytes) -> bytes:
    """Return the key of a comment's article."""
    return comment[-LENGTH.size :]


async def send_count(ctx: Context, count: int | None) -> None:
    """Send how many comments an article has."""
    ctx.send(counts, key=ctx.key, value=None if count is None else LONG.pack(count))


comment_table = app.table(comments, name="comments")
comment_table.aggregate("count", by=article_of, key_type=bytes, aggregate=aggregates.count(), on_change=send_count)


@app.join(app.table(for_counts, name="counted"), app.table(counts, name="counts"), how="left")
async def augment_article(ctx: Context, article: bytes | None, count: bytes | None) -> None:
    """Send an article with the count of its comments."""
    ctx.send(results_of_articles, key=ctx.key, value=None if article is None else article + (count or LONG.pack(0)))


@app.join(comment_table, app.table(for_comments, name="commented"), on=article_of)
async def augment_comment(ctx: Context, comment: bytes | None, article: bytes | None) -> None:
    """Send a comment with the beginning of its article."""
    if comment is None or article is None:
        ctx.send(results_of_comments, key=ctx.key, value=None)
        return
    prefix = article[HEAD.size :][:PREFIX_BYTES]
    ctx.send(results_of_comments, key=ctx.key, value=comment + LENGTH.pack(len(prefix)) + prefix)
